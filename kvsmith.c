/* kvsmith.c: main and the table of commands. */
#include <errno.h>
#include <jansson.h>
#include <oneapi/dnnl/dnnl.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sys/prctl.h>
#include <unistd.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zlib.h>
#include <zstd.h>
#include "model/cli.h"
#include "ops/oom.h"
#include "ops/ops.h"
#include "ops/procs.h"
#include "ops/signals.h"

int cmd_train(int argc, char **argv), cmd_generate(int argc, char **argv), cmd_eval(int argc, char **argv),
    cmd_logits(int argc, char **argv), cmd_info(int argc, char **argv), cmd_bench(int argc, char **argv),
    cmd_config(int argc, char **argv), cmd_compare(int argc, char **argv), cmd_data(int argc, char **argv),
    cmd_convert(int argc, char **argv), cmd_launch(int argc, char **argv), cmd_device(int argc, char **argv),
    cmd_compress(int argc, char **argv), cmd_calibrate(int argc, char **argv);

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *line;
} Command;
static const Command commands[] = {
    {"train", cmd_train, "Train a model from a configuration, or resume a run"},
    {"launch", cmd_launch, "Start and watch the ranks of a run on this machine"},
    {"convert", cmd_convert, "Convert a checkpoint to another KV-cache layout and measure the difference"},
    {"generate", cmd_generate, "Continue prompts with a model"},
    {"compress", cmd_compress, "Shorten a prompt by what a model finds predictable in it"},
    {"calibrate", cmd_calibrate, "Find what the codecs palu and aqua need to know of a model's keys and values"},
    {"eval", cmd_eval, "Measure a model: perplexity of a text, multiple choice, synthetic tasks"},
    {"logits", cmd_logits, "Write a model's logits for given tokens to a safetensors file"},
    {"info", cmd_info, "Check a model or a configuration; print parameters, FLOPs and cache bytes"},
    {"bench", cmd_bench, "Measure this machine's limits and the program's speed"},
    {"compare", cmd_compare, "Train layouts on equal terms; print quality, memory and speed"},
    {"data", cmd_data, "Make token datasets from text, learn a tokenizer, inspect datasets"},
    {"device", cmd_device, "Show CPU or GPU properties"},
    {"config", cmd_config, "Explain every key of a run's configuration, or check a configuration"},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

static void help(void) {
    printf("Usage: kvsmith COMMAND [OPTION...]\n"
           "Trains, evaluates and decodes language models whose KV cache is compact.\n\nCommands:\n");
    for (int i = 0; i < NCOMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].line);
    printf("\nkvsmith COMMAND --help prints the options of a command. Exit status: 0 done; 2 invalid input "
           "or\nconfiguration; 1 run-time failure (disk, memory, a diverged loss); 130 interrupted, state saved.\n");
}

/* Print what a bug report needs to contain. */
static void version(void) {
    Device *dev;
    Err e = {0};
    printf("kvsmith %s\n", KVSMITH_VERSION);
    if (device_open(&dev, "cpu", 1, &e)) {
        printf("instruction set  %s\n", device_isa(dev));
        device_close(dev);
    }
    const dnnl_version_t *dnnl = dnnl_version();
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    printf("libraries        oneDNN %d.%d.%d, libyaml %s, jansson %s, PCRE2 %s, utf8proc %s, zlib %s, zstd %s\n",
           dnnl->major, dnnl->minor, dnnl->patch, yaml_get_version_string(), jansson_version_str(), pcre,
           utf8proc_version(), zlibVersion(), ZSTD_versionString());
    printf("compiler         %s\n", __VERSION__);
}

static int dispatch(int argc, char **argv) {
    Err e = {0};
    if (argc < 2) {
        err_input(&e, "expected a command; see kvsmith --help");
        return cli_fail(&e);
    }
    const char *name = argv[1], *names[NCOMMANDS];
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || (!strcmp(name, "help") && argc == 2)) {
        help();
        return 0;
    }
    if (!strcmp(name, "--version")) {
        version();
        return 0;
    }
    if (!strcmp(name, "help")) { /* `help COMMAND` is `COMMAND --help`; a command of two words is one word here */
        char *again[] = {argv[0], argv[2], argc > 3 ? argv[3] : "--help", argc > 3 ? "--help" : NULL, NULL};
        return argv[2][0] == '-' ? (help(), 0) : dispatch(argc > 3 ? 4 : 3, again);
    }
    for (int i = 0; i < NCOMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i])) continue;
        return commands[i].run(argc - 1, argv + 1);
    }
    const char *near = cli_nearest(name, NCOMMANDS, names);
    if (near)
        err_input(&e, "unknown command '%.100s'; did you mean %s?", name, near);
    else
        err_input(&e, "unknown command '%.100s'; see kvsmith --help", name);
    return cli_fail(&e);
}

/* Make waiting threads spin for a few microseconds only, then give their core away. The OpenMP library's default is
 * milliseconds, which costs a run most of its speed as soon as another program wants a core (docs/log.md). The library
 * reads its setting before main. So unless the user has set it, this sets it and starts the program again. */
static void wait_politely(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "500", 1)) return;
    procs_unbind();
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    signals_begin();
    wait_politely(argv);
    prctl(PR_SET_NAME, "kvsmith"); /* tools would show "exe", because the program was started as /proc/self/exe */
    oom_guard_json();
    int status = dispatch(argc, argv);
    /* Printed text may still be lost: a full disk behind stdout must not look like success. */
    bool lost = fflush(stdout);
    if ((lost || ferror(stdout)) && !status) {
        Err e = {0};
        /* Only a write that fails now has a reason: that of an earlier one is gone, so another line is tried. */
        if (!lost) lost = TEMP_FAILURE_RETRY(write(STDOUT_FILENO, "\n", 1)) < 0;
        err_runtime(&e, "standard output: %s", lost ? strerror(errno) : "a part could not be written");
        status = cli_fail(&e);
    }
    return status;
}
