# kvsmith. `make` builds the program; needs what ./setup installs.
#   make            build/kvsmith                  make test    every test; last line: N passed, N failed, N skipped
#   make demo       train and generate, 3 minutes  make bench   GEMM and memory peaks, tokens/s
#   make double     the sources with real = double make asan    program and tests under ASan + UBSan
#   make fuzz       parsers, FUZZ_SECONDS each     make format | format-check | docs | clean
#   make simt       build/simt/: the CUDA backend on an emulated device     make simt-test    its tests
#   make cuda       build/cuda/kvsmith, by nvcc    make cuda-check   every kernel for sm_80 and sm_90: no spills
#   make cudnn-check plans of cuDNN for the attention of configs/*.yaml, where the library is; needs no device
#   make gpu-bundle build/gpu-check/, for a machine with a device   make gpu-check   runs it; ON=simt: on the emulation
#   make gpu-rehearse the first half hour on a device, on the emulation: cut off, killed, hung (REHEARSE=short: 1 minute)
#   make arm-check  ARM_ROOT=DIR: what depends on the processor, for aarch64 under qemu-aarch64 (tests/arm/)
#   make faults     calls of the system that fail, and kill -9, over every command (SHARE=1/4: a quarter), some minutes
#   make big-text   1 GB of text to tokens in less than 1 GB of memory, some minutes
# PEER_LLMC=FOLDER, PEER_LLAMACPP=FOLDER: `make bench` measures these builds beside (tests/peers/llmc.py, llamacpp.py)
# Variables: BUILD=build, SAN=1 (sanitizers), TESTS="tests/model/test_x.c" (only these), CC, CFLAGS, LDFLAGS, WERROR= (forgive), V=1 (show).
BUILD ?= build
FUZZ_SECONDS ?= 20
# Objects are kept by ccache where it is installed (CC=gcc does without).
ifeq ($(origin CC),default)
CC := $(if $(shell command -v ccache 2>/dev/null),ccache gcc,gcc)
endif
MAKEFLAGS += --no-builtin-rules
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2
endif
DIRS   := ops layers model optim data train infer convert
# ops/cpu/cpu.c includes its siblings; it and gemm_bf16.c are compiled once per instruction set.
# ops/ref/ is for tests (HELP). ops/cuda/host/ and kernels/ are in a program only where `simt` or `cuda` links them.
SRC    := $(filter-out ops/cpu/% ops/ref/% train/comm/comm_mpi_so.c,$(wildcard $(DIRS:=/*.c) $(DIRS:=/*/*.c)))
CU     := $(wildcard ops/cuda/kernels/*.cu)
SUITES := $(wildcard $(patsubst %,tests/%/test_*.c,ops layers model train infer convert data cli))
TESTS  ?= $(SUITES)
HELP   := $(wildcard tests/lib/*.c ops/ref/*.c)
STYLED  = $(shell find kvsmith.c $(DIRS) tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp')

WERROR ?= -Werror
WARN   := -Wall -Wextra -Wno-format-zero-length $(WERROR)
# Paths in what debuggers read begin at the checkout: one checkout finds what ccache kept of another.
HERE   := -fdebug-prefix-map=$(CURDIR)=.
BASE    = -std=gnu11 -g $(HERE) -fopenmp -D_GNU_SOURCE -fno-math-errno -fno-trapping-math $(WARN) -I. -MMD -MP
ifdef SAN
BASE   += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -fno-var-tracking
else
BASE   += $(OPT)
endif
# Kernels get -O3 without the places of variables, a quarter of their time; the rest, tests above all, compiles in half.
OPT     = -O2
$(BUILD)/f32/ops/% $(BUILD)/f64/ops/% $(BUILD)/cuda/%: OPT = -O3 -fno-var-tracking
$(BUILD)/f32/tests/% $(BUILD)/f64/tests/%: OPT = $(if $(findstring /tests/lib/,$@),-O2,-O1)
LIBS   := -Wl,--wrap=GOMP_parallel -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -lsodium -lm
ISAS   := baseline
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
ISAS   += avx2 avx512 avx512bf16
# GCC 14 would fuse multiply and add in some copies of a loop alone; a row's bits must not depend on the rows next to it.
FUSE   := $(shell $(CC) -Werror --param avoid-fma-max-bits=0 -E -x c /dev/null >/dev/null 2>&1 && echo --param avoid-fma-max-bits=0)
endif
BF16S  := $(if $(filter avx512bf16,$(ISAS)),amx) $(if $(filter aarch64-%,$(shell $(CC) -dumpmachine)),neonbf16)
Q      := $(if $(V),,@)

CPU32  := $(if $(wildcard ops/cpu/cpu.c),$(ISAS:%=$(BUILD)/f32/ops/cpu/cpu.%.o))
BF16   := $(if $(wildcard ops/cpu/gemm_bf16.c),$(patsubst %,$(BUILD)/f32/ops/cpu/gemm_bf16.%.o,$(ISAS) $(BF16S)))
# The same source with the tiles of AMX in plain C (tests/lib/tiles.h): in the tests' program alone.
TILES  := $(if $(filter avx512bf16,$(ISAS)),$(BUILD)/f32/ops/cpu/gemm_bf16.amx_emulated.o)
CPU64  := $(if $(wildcard ops/cpu/cpu.c),$(BUILD)/f64/ops/cpu/cpu.baseline.o)
OBJ32  := $(SRC:%.c=$(BUILD)/f32/%.o) $(CPU32) $(BF16)
OBJ64  := $(SRC:%.c=$(BUILD)/f64/%.o) $(CPU64)

$(BUILD)/kvsmith: $(BUILD)/f32/kvsmith.o $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS)
$(BUILD)/tests-f32: $(patsubst %.c,$(BUILD)/f32/%.o,$(TESTS) $(HELP)) $(TILES) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS) -lcriterion
# Double is the oracle of arithmetic. What moves bytes, reads text or settings, or starts programs is tested in f32 alone.
BYTES  := bpe cache choices cli comm% config data defaults dist% events fuzz gguf% hf_write info_large inputs moments \
          rendezvous% safetensors saved schema sessions sets sft shards task task_text team tier tokenizers tokens tuning
DOUBLE  = $(foreach t,$(TESTS),$(if $(filter $(BYTES),$(patsubst test_%.c,%,$(notdir $t))),,$t))
$(BUILD)/tests-f64: $(patsubst %.c,$(BUILD)/f64/%.o,$(DOUBLE) $(HELP)) $(BUILD)/f64/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ $(LIBS) -lcriterion
$(BUILD)/f32/lib.a: $(OBJ32)
$(BUILD)/f64/lib.a: $(OBJ64)
%/lib.a:
	@rm -f $@
	$(Q)ar rcs $@ $^

include train/comm/mpi.mk
define compile
@mkdir -p $(@D)
@echo "  CC $@"
$(Q)$(CC) $(BASE) $(CFLAGS) -DKVSMITH_PATH='"$(BUILD)/kvsmith"' -c -o $@ $<
endef
$(BUILD)/f64/%.o: BASE += -DKV_DOUBLE
$(BUILD)/%.baseline.o: BASE += -DOPS_ISA=baseline
$(BUILD)/%.avx2.o: BASE += $(FUSE) -DOPS_ISA=avx2 -mavx2 -mfma -mbmi2
$(BUILD)/%.avx512.o: BASE += $(FUSE) -DOPS_ISA=avx512 -march=x86-64-v4 -mprefer-vector-width=512
$(BUILD)/%.avx512bf16.o: BASE += $(FUSE) -DOPS_ISA=avx512bf16 -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512
$(BUILD)/%.neonbf16.o: BASE += -DOPS_ISA=neonbf16 -DOPS_NEON -march=armv8.2-a+bf16
$(BUILD)/%.amx.o: BASE += $(FUSE) -DOPS_ISA=amx -DOPS_TILES -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512 -mamx-tile -mamx-bf16
$(BUILD)/%.amx_emulated.o: BASE += $(FUSE) -DOPS_ISA=amx_emulated -DOPS_TILES -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512 -include tests/lib/tiles.h
# The commit that the source is of, "+" with changes: for the one object that names it, which alone is made again when it
# changes. Empty where there is no git, or where git knows another tree than this one.
$(BUILD)/commit.h: FORCE
	@mkdir -p $(@D)
	@c=$$(git -c safe.directory='*' ls-files --error-unmatch kvsmith.c >/dev/null 2>&1 && git -c safe.directory='*' rev-parse --short=12 HEAD 2>/dev/null); \
	[ -z "$$c" ] || git -c safe.directory='*' diff --quiet HEAD 2>/dev/null || c=$$c+; \
	echo "#define KVSMITH_COMMIT \"$$c\"" | cmp -s - $@ || echo "#define KVSMITH_COMMIT \"$$c\"" >$@
$(BUILD)/f32/train/report/provenance.o $(BUILD)/f64/train/report/provenance.o: $(BUILD)/commit.h
$(BUILD)/f32/train/report/provenance.o $(BUILD)/f64/train/report/provenance.o: BASE += -include $(BUILD)/commit.h
FORCE:
$(BUILD)/f32/model/files/modeling.o $(BUILD)/f64/model/files/modeling.o: model/files/modeling_kvsmith.py
$(BUILD)/f32/%.o: %.c Makefile
	$(compile)
$(BUILD)/f64/%.o: %.c Makefile
	$(compile)
$(BUILD)/f32/ops/cpu/cpu.%.o: ops/cpu/cpu.c Makefile
	$(compile)
$(BUILD)/f32/ops/cpu/gemm_bf16.%.o: ops/cpu/gemm_bf16.c Makefile
	$(compile)
$(BUILD)/f64/ops/cpu/cpu.%.o: ops/cpu/cpu.c Makefile
	$(compile)
-include $(shell [ -d $(BUILD) ] && find $(BUILD)/f32 $(BUILD)/f64 -name '*.d' 2>/dev/null)

include ops/cuda/cuda.mk
include tests/check.mk
.PHONY: FORCE arm-check cudnn-check simt simt-test simt-clang cuda cuda-check gpu-bundle gpu-check gpu-rehearse double asan test demo bench fuzz faults big-text format format-check docs clean
double: $(BUILD)/f64/lib.a
asan:
	$(MAKE) SAN=1 BUILD=$(BUILD)/asan $(BUILD)/asan/kvsmith $(BUILD)/asan/tests-f32
test: $(BUILD)/kvsmith $(BUILD)/tests-f32 $(BUILD)/tests-f64 $(FAULTS)
	@tests/run.sh $(BUILD)
demo: $(BUILD)/kvsmith
	@tests/demo.sh $(BUILD)
bench: $(BUILD)/kvsmith
	$(BUILD)/kvsmith bench
	@[ -z "$$PEER_LLMC" ] || python3 tests/peers/llmc.py $<
	@[ -z "$$PEER_LLAMACPP" ] || python3 tests/peers/llamacpp.py $<
fuzz:
	@tests/fuzz.sh $(BUILD) $(FUZZ_SECONDS)
big-text: $(BUILD)/kvsmith
	@BUILD=$(BUILD) tests/big_text.sh
format:
	@clang-format -i $(STYLED)
format-check:
	@clang-format --dry-run --Werror $(STYLED)
docs: $(BUILD)/kvsmith
	$(BUILD)/kvsmith config --markdown > docs/config.md
	@rc=0; FIX=1 KVSMITH=$< tests/docs.sh tables; for part in links names width words help messages headers; do KVSMITH=$< tests/docs.sh $$part || rc=1; done; exit $$rc
clean:
	rm -rf $(BUILD)
