/* kvsmith data: text to sets of tokens, a tokenizer of one's own, a look into either. */
#include "cmd_data.h"

int cmd_data(int argc, char **argv);

/* A word where no part was named. */
static bool no_part(void *ctx, int key, const char *arg, Err *e) {
    (void)ctx;
    CHECK(key == CLI_ARG, "option %d", key);
    return err_input(e, "data: expected tokenize, train-bpe or inspect first, got '%.100s'", arg);
}

int cmd_data(int argc, char **argv) {
    static const char *const names[] = {"tokenize", "train-bpe", "inspect"};
    int (*const run[])(int, char **) = {data_tokenize, data_train_bpe, data_inspect};
    static const CliSpec spec = {.args = "PART [OPTION...]",
                                 .doc =
                                     "tokenize: make a token dataset from text (Megatron .bin/.idx or llm.c .bin). "
                                     "train-bpe: learn a tokenizer.json from text. inspect: check token datasets and "
                                     "print what they contain. kvsmith data PART --help prints the options of a part.",
                                 .take = no_part,
                                 .min_args = 1,
                                 .max_args = -1};
    for (int i = 0; argc > 1 && i < 3; i++)
        if (!strcmp(argv[1], names[i])) {
            char name[24]; /* for messages and the help */
            snprintf(name, sizeof name, "data %s", names[i]);
            argv[1] = name;
            return run[i](argc - 1, argv + 1);
        }
    Cli cli;
    int status = 0;
    bool parsed = cli_parse(&spec, &cli, NULL, argc, argv, &status); /* never: a word is refused, none are too few */
    CHECK(!parsed, "data without a part");
    return status;
}
