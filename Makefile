# kvsmith. `make` builds the program; needs what ./setup installs.
#   make            build/kvsmith                  make test    every test; last line: N passed, N failed, N skipped
#   make demo       train and generate, 5 minutes  make bench   GEMM and memory peaks, tokens/s
#   make double     the sources with real = double make asan    program and tests under ASan + UBSan
#   make fuzz       parsers, FUZZ_SECONDS each     make format | format-check | docs | clean
#   make big-text   1 GB of text to tokens in less than 1 GB of memory, some minutes
# Variables: BUILD=build, SAN=1 (sanitizers), TESTS="tests/test_x.c" (only these), CC, CFLAGS, LDFLAGS, WERROR= (forgive), V=1 (show).
BUILD ?= build
FUZZ_SECONDS ?= 20
ifeq ($(origin CC),default)
CC = gcc
endif
MAKEFLAGS += --no-builtin-rules
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j2
endif

DIRS   := ops layers model optim data train infer convert
# ops/cpu/cpu.c includes its siblings; it and gemm_bf16.c are compiled once per instruction set.
SRC    := $(filter-out ops/cpu/%,$(wildcard $(DIRS:=/*.c) $(DIRS:=/*/*.c)))
TESTS  ?= $(wildcard tests/test_*.c)
HELP   := $(filter-out $(wildcard tests/test_*.c),$(wildcard tests/*.c))
STYLED  = $(wildcard *.[ch] $(DIRS:=/*.[ch]) $(DIRS:=/*/*.[ch]) tests/*.[ch] tests/*/*.[ch])

WERROR ?= -Werror
WARN   := -Wall -Wextra -Wno-format-zero-length $(WERROR)
BASE    = -std=gnu11 -g -fopenmp -D_GNU_SOURCE -fno-math-errno -fno-trapping-math $(WARN) -I. -MMD -MP
ifdef SAN
BASE   += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else
BASE   += -O3
endif
LIBS   := -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -llapacke -lblas -lm
ISAS   := baseline
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
ISAS   += avx2 avx512
endif
Q      := $(if $(V),,@)

CPU32  := $(if $(wildcard ops/cpu/cpu.c),$(ISAS:%=$(BUILD)/f32/ops/cpu/cpu.%.o))
BF16   := $(if $(wildcard ops/cpu/gemm_bf16.c),$(patsubst %,$(BUILD)/f32/ops/cpu/gemm_bf16.%.o,$(ISAS) $(if $(filter avx512,$(ISAS)),avx512bf16)))
CPU64  := $(if $(wildcard ops/cpu/cpu.c),$(BUILD)/f64/ops/cpu/cpu.baseline.o)
OBJ32  := $(SRC:%.c=$(BUILD)/f32/%.o) $(CPU32) $(BF16)
OBJ64  := $(SRC:%.c=$(BUILD)/f64/%.o) $(CPU64)

$(BUILD)/kvsmith: $(BUILD)/f32/kvsmith.o $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS)
$(BUILD)/tests-f32: $(patsubst %.c,$(BUILD)/f32/%.o,$(TESTS) $(HELP)) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS) -lcriterion
$(BUILD)/tests-f64: $(patsubst %.c,$(BUILD)/f64/%.o,$(TESTS) $(HELP)) $(BUILD)/f64/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ $(LIBS) -lcriterion
$(BUILD)/f32/lib.a: $(OBJ32)
$(BUILD)/f64/lib.a: $(OBJ64)
%/lib.a:
	@rm -f $@
	$(Q)ar rcs $@ $^

define compile
@mkdir -p $(@D)
@echo "  CC $@"
$(Q)$(CC) $(BASE) $(CFLAGS) -DKVSMITH_PATH='"$(BUILD)/kvsmith"' -c -o $@ $<
endef
$(BUILD)/f64/%.o: BASE += -DKV_DOUBLE
$(BUILD)/%.baseline.o: BASE += -DOPS_ISA=baseline
$(BUILD)/%.avx2.o: BASE += -DOPS_ISA=avx2 -mavx2 -mfma -mbmi2
$(BUILD)/%.avx512.o: BASE += -DOPS_ISA=avx512 -march=x86-64-v4 -mprefer-vector-width=512
$(BUILD)/%.avx512bf16.o: BASE += -DOPS_ISA=avx512bf16 -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512
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

.PHONY: double asan test demo bench fuzz big-text format format-check docs clean
double: $(BUILD)/f64/lib.a
asan:
	$(MAKE) SAN=1 BUILD=$(BUILD)/asan $(BUILD)/asan/kvsmith $(BUILD)/asan/tests-f32
test: $(BUILD)/kvsmith $(BUILD)/tests-f32 $(BUILD)/tests-f64
	@tests/run.sh $(BUILD)
demo: $(BUILD)/kvsmith
	@tests/demo.sh $(BUILD)
bench: $(BUILD)/kvsmith
	$(BUILD)/kvsmith bench
fuzz:
	@tests/fuzz.sh $(BUILD) $(FUZZ_SECONDS)
big-text: $(BUILD)/kvsmith
	@BUILD=$(BUILD) tests/big_text.sh
format:
	clang-format -i $(STYLED)
format-check:
	clang-format --dry-run --Werror $(STYLED)
docs: $(BUILD)/kvsmith
	$(BUILD)/kvsmith config --markdown > docs/config.md
clean:
	rm -rf $(BUILD)
