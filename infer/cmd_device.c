/* kvsmith device: prints the properties of the CPU or GPU: its limits, memory, and the versions of its libraries. */
#include "ops/host.h"
#include "engine.h"

int cmd_device(int argc, char **argv);

/* "maxGridSize.1" is the second number of an array. */
static void see_json(void *ctx, const char *name, long long number, const char *text) {
    json_t *out = ctx, *value = text ? json_string(text) : json_integer(number);
    const char *dot = strchr(name, '.');
    if (!dot) {
        json_object_set_new(out, name, value);
        return;
    }
    char array[64];
    snprintf(array, sizeof array, "%.*s", (int)(dot - name), name);
    if (!json_object_get(out, array)) json_object_set_new(out, array, json_array());
    json_array_append_new(json_object_get(out, array), value);
}
static void see_text(void *ctx, const char *name, long long number, const char *text) {
    (void)ctx;
    if (text)
        printf("%-30s %s\n", name, text);
    else
        printf("%-30s %lld\n", name, number);
}

int cmd_device(int argc, char **argv) {
    static const CliSpec spec = {.doc =
                                     "Prints the properties of the CPU, or of the GPU with --device cuda: its limits, "
                                     "under the names of cuDNN's device descriptions, its memory, and the versions of "
                                     "driver, runtime and cuBLASLt. Fails if the device cannot be used."};
    Cli cli;
    Device *dev;
    Err e = {0};
    int status;
    if (!cli_parse(&spec, &cli, NULL, argc, argv, &status)) return status;
    engine_signals();
    if (!engine_device(&dev, &cli, &e)) return cli_fail(&e);
    json_t *out = cli.json ? json_pack("{s:s}", "device", device_ops(dev)->name) : NULL;
    if (out)
        device_facts(dev, see_json, out);
    else
        device_facts(dev, see_text, NULL);
    device_close(dev);
    return !cli.json || engine_print(out, &e) ? 0 : cli_fail(&e);
}
