"""What the scripts beside it share: refusals, kvsmith's own figures, the model that two programs have, random weights, spreads."""
import array
import contextlib
import json
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

STANDARD = {"model": {"d_model": 384, "layers": 6, "kinds": {"full": {"mixer": "gqa", "heads": 6, "kv_heads": 2, "head_dim": 64}},
                      "ffn": {"kind": "swiglu", "hidden": 1024}}, "data": {"seq_len": 256}}  # train/bench/cmd_bench.c's


def stop(line, status=1):
    print(f"{os.path.basename(sys.argv[0])}: {line}", file=sys.stderr)
    sys.exit(status)


def program(variable, name):
    """The path of program `name` in the folder (or its bin/) that the environment's `variable` names."""
    folder = os.environ.get(variable)
    if not folder:
        stop(f"{variable}: expected the folder of a build that holds {name}, is not set; see --help", 2)
    for path in (os.path.join(folder, name), os.path.join(folder, "bin", name)):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    stop(f"{variable}: expected a folder that holds the program {name}, got '{folder}', which does not", 2)


def check_rounds(args):
    if args.rounds < 1 or args.threads < 1:
        stop(f"--rounds, --threads: expected at least 1, got {args.rounds}, {args.threads}", 2)


def output(cmd):
    """What cmd prints; its last line on stderr when it fails."""
    try:
        done = subprocess.run(cmd, capture_output=True, text=True, errors="replace")
    except OSError as e:
        stop(f"cannot run {cmd[0]}: {e.strerror}", 2)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["nothing on stderr"]
        stop(f"{os.path.basename(cmd[0])} ended with status {done.returncode}: {said[-1]}")
    return done.stdout


def kvsmith(args, *words):
    return json.loads(output([args.kvsmith, "bench", *map(str, words), "--json", "--threads", str(args.threads),
                              "--seconds", str(args.seconds)]))


def llama_shape(path):
    """model, its kind, its feed-forward part of the configuration at path (None: kvsmith's standard model), where a Llama computes the same."""
    cfg = STANDARD
    if path:
        try:
            import yaml
        except ImportError:
            stop("a configuration is read by PyYAML: expected that python3 has it (pip install pyyaml)", 2)
        try:
            cfg = yaml.safe_load(open(path))
        except (OSError, yaml.YAMLError) as e:
            stop(f"{path}: expected a configuration in YAML: {str(e).splitlines()[0]}", 2)
    try:
        model = cfg["model"]
        kind = next(iter(model["kinds"].values()))
        ffn = model["ffn"][0] if isinstance(model["ffn"], list) else model["ffn"]
        plain = len(model["kinds"]) == 1 and kind["mixer"] == "gqa" and ffn["kind"] == "swiglu" and model.get("tied", True) and \
            kind.get("rope") != "none" and not any(kind.get(k) for k in ("window", "qk_norm", "qkv_bias", "o_bias")) and \
            model.get("norm", "rms") == "rms" and model.get("positions", "none") == "none" and not model.get("kv_from") and \
            not model.get("parallel")
    except (KeyError, TypeError, AttributeError):
        stop(f"{path}: expected a configuration with model.kinds and model.ffn", 2)
    if not plain:
        stop(f"{path}: expected a tied model of one plain gqa kind, one swiglu and RMSNorm: this peer has no other", 2)
    return model, kind, ffn


@contextlib.contextmanager
def folder():
    """A temporary folder, gone behind it however the script is ended, but by SIGKILL."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="peer.") as path:
        try:
            yield path
        except OSError as e:
            stop(f"cannot write to {path}: {e.strerror or e}")


class Noise:
    """Random numbers of deviation 0.02, in any amount at once: a block, repeated. Speed does not see that they repeat."""

    def __init__(self, dtype):
        pick = random.Random(1)
        x = array.array("f", (pick.gauss(0, 0.02) for _ in range(65521)))
        raw = struct.pack(f"<{len(x)}f", *x)
        self.dtype, self.bytes, self.block = dtype, 4, raw
        if dtype == "bf16":  # the upper half of f32
            half = bytearray(len(raw) // 2)
            half[0::2], half[1::2] = raw[2::4], raw[3::4]
            self.bytes, self.block = 2, bytes(half)
        elif dtype == "f16":
            self.bytes, self.block = 2, struct.pack(f"<{len(x)}e", *x)

    def write(self, f, count):
        left = count * self.bytes
        while left > 0:
            f.write(self.block[:left])
            left -= min(left, len(self.block))


def spread(x, digits=1):
    return f"{statistics.median(x):.{digits}f} ({min(x):.{digits}f} to {max(x):.{digits}f})"


def ratios(a, b):
    return [x / y for x, y in zip(a, b)]
