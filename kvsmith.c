/* kvsmith.c: the table of commands. */
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
    cmd_convert(int argc, char **argv), cmd_launch(int argc, char **argv), cmd_bench_comm(int argc, char **argv),
    cmd_device(int argc, char **argv);

typedef struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *line;
} Command;
static const Command commands[] = {
    {"train", cmd_train, "Train a model as a configuration says; resume"},
    {"launch", cmd_launch, "Start the ranks of a run on this machine; watch over them"},
    {"convert", cmd_convert, "Give a checkpoint another layout of its cache; compare both"},
    {"generate", cmd_generate, "Continue prompts with a model"},
    {"eval", cmd_eval, "Measure a model on a text (perplexity) or on a synthetic task (accuracy)"},
    {"logits", cmd_logits, "Write a model's logits of given tokens to a safetensors file"},
    {"info", cmd_info, "Parameters, FLOPs and cache bytes of a model or a configuration"},
    {"bench", cmd_bench, "Measure this machine's limits and the program's speed"},
    {"compare", cmd_compare, "Train architectures alike and tell what each costs in quality, memory and speed"},
    {"data", cmd_data, "Make tokens of text, learn a tokenizer, look into sets of tokens"},
    {"device", cmd_device, "What a device says of itself"},
    {"config", cmd_config, "Explain every key of a run's configuration, or check a file"},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

static void help(void) {
    printf("Usage: kvsmith COMMAND [OPTION...]\n"
           "Trains, evaluates and decodes language models whose KV cache is compact.\n\nCommands:\n");
    for (int i = 0; i < NCOMMANDS; i++) printf("  %-10s %s\n", commands[i].name, commands[i].line);
    printf(
        "\nkvsmith COMMAND --help tells what a command takes. Exit status: 0 done; 2 what was given cannot be used;\n"
        "1 the world failed (disk, memory, a diverged loss); 130 interrupted, state saved.\n");
}

/* What a report of a mistake needs to know. */
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
    if (!strcmp(name, "help")) { /* help COMMAND is COMMAND --help; a command of two words is one here */
        char *again[] = {argv[0], argv[2], argc > 3 ? argv[3] : "--help", argc > 3 ? "--help" : NULL, NULL};
        return argv[2][0] == '-' ? (help(), 0) : dispatch(argc > 3 ? 4 : 3, again);
    }
    for (int i = 0; i < NCOMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i])) continue;
        /* The rest of bench knows nothing of ranks, which belong to training. */
        if (!strcmp(name, "bench") && argc > 2 && !strcmp(argv[2], "comm")) return cmd_bench_comm(argc - 1, argv + 1);
        return commands[i].run(argc - 1, argv + 1);
    }
    const char *near = cli_nearest(name, NCOMMANDS, names);
    if (near)
        err_input(&e, "unknown command '%.100s'; did you mean %s?", name, near);
    else
        err_input(&e, "unknown command '%.100s'; see kvsmith --help", name);
    return cli_fail(&e);
}

/* Threads that wait for the others spin for a few microseconds, then give their core away. The OpenMP library's own
 * default spins for milliseconds, which costs a run most of its speed as soon as another program wants a core
 * (docs/log.md), and it reads its setting before main: so it is set, unless the user has, and the program started
 * again. */
static void wait_politely(char **argv) {
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || setenv("GOMP_SPINCOUNT", "500", 1)) return;
    procs_unbind();
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    signals_begin();
    wait_politely(argv);
    prctl(PR_SET_NAME, "kvsmith"); /* started as /proc/self/exe, tools would show "exe" */
    oom_guard_json();
    int status = dispatch(argc, argv);
    /* What was printed may still fail to arrive: a full disk behind stdout must not look like success. */
    bool lost = fflush(stdout);
    if ((lost || ferror(stdout)) && !status) {
        Err e = {0};
        /* Only a write that fails now knows why: of an earlier one the reason is gone, so another line is tried. */
        if (!lost) lost = TEMP_FAILURE_RETRY(write(STDOUT_FILENO, "\n", 1)) < 0;
        err_world(&e, "standard output: %s", lost ? strerror(errno) : "a part could not be written");
        status = cli_fail(&e);
    }
    return status;
}
