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
# Variables: BUILD=build, SAN=1 (sanitizers), TESTS="tests/test_x.c" (only these), CC, CFLAGS, LDFLAGS, WERROR= (forgive), V=1 (show).
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
# ops/cuda/ is in a program only where `simt` or `cuda` link it; others have none.c, and the ledger.
SRC    := $(filter-out ops/cpu/% ops/cuda/table.c ops/cuda/products.c ops/cuda/sequence.c ops/cuda/optimizer.c ops/cuda/open.c ops/cuda/lt_so.c ops/cuda/cudnn_so.c ops/cuda/fused.c ops/cuda/side.c train/comm_mpi_so.c,$(wildcard $(DIRS:=/*.c) $(DIRS:=/*/*.c)))
CU     := $(wildcard ops/cuda/*.cu)
TESTS  ?= $(wildcard tests/test_*.c)
HELP   := $(filter-out $(wildcard tests/test_*.c),$(wildcard tests/*.c))
STYLED  = $(wildcard *.[ch] $(DIRS:=/*.[ch]) $(DIRS:=/*/*.[ch]) tests/*.[ch] tests/*/*.[ch] $(CU) \
          tests/simt/*.cpp tests/simt/*.cu tests/simt/include/*.h)

WERROR ?= -Werror
WARN   := -Wall -Wextra -Wno-format-zero-length $(WERROR)
BASE    = -std=gnu11 -g -fopenmp -D_GNU_SOURCE -fno-math-errno -fno-trapping-math $(WARN) -I. -MMD -MP
ifdef SAN
BASE   += -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
else
BASE   += $(OPT)
endif
# Kernels get what the compiler can do; the rest, and tests above all, compile in half the time.
OPT     = -O2
$(BUILD)/f32/ops/% $(BUILD)/f64/ops/% $(BUILD)/cuda/%: OPT = -O3
$(BUILD)/f32/tests/% $(BUILD)/f64/tests/%: OPT = -O1
LIBS   := -lyaml -ljansson -lpcre2-8 -lutf8proc -lz -lzstd -lsodium -lm
ISAS   := baseline
ifneq ($(filter x86_64-%,$(shell $(CC) -dumpmachine)),)
ISAS   += avx2 avx512 avx512bf16
endif
BF16S  := $(if $(filter avx512bf16,$(ISAS)),amx) $(if $(filter aarch64-%,$(shell $(CC) -dumpmachine)),neonbf16)
Q      := $(if $(V),,@)

CPU32  := $(if $(wildcard ops/cpu/cpu.c),$(ISAS:%=$(BUILD)/f32/ops/cpu/cpu.%.o))
BF16   := $(if $(wildcard ops/cpu/gemm_bf16.c),$(patsubst %,$(BUILD)/f32/ops/cpu/gemm_bf16.%.o,$(ISAS) $(BF16S)))
# The same source with the tiles of AMX in plain C (tests/tiles.h): in the tests' program alone.
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
BYTES  := bpe choices cli comm comm_threads config data defaults dist_save events fuzz inputs schema sets \
          sft shards store store_file store_msg task tokens tuning
DOUBLE  = $(filter-out $(BYTES:%=tests/test_%.c),$(TESTS))
$(BUILD)/tests-f64: $(patsubst %.c,$(BUILD)/f64/%.o,$(DOUBLE) $(HELP)) $(BUILD)/f64/lib.a
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ $(LIBS) -lcriterion
$(BUILD)/f32/lib.a: $(OBJ32)
$(BUILD)/f64/lib.a: $(OBJ64)
%/lib.a:
	@rm -f $@
	$(Q)ar rcs $@ $^

# What knows MPI: only where its development files are, and opened only by ranks that ask for it.
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)
ifneq ($(MPI_LIBS),)
MPI_SO := $(BUILD)/kvsmith-mpi.so
$(BUILD)/kvsmith $(BUILD)/tests-f32: | $(MPI_SO)
endif
$(BUILD)/kvsmith-mpi.so: train/comm_mpi_so.c train/comm_mpi_so.h Makefile
	@mkdir -p $(@D)
	@echo "  SO $@"
	$(Q)$(CC) -std=gnu11 -g -O2 $(WARN) -fPIC -shared $(MPI_CFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) $(MPI_LIBS)

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
$(BUILD)/%.neonbf16.o: BASE += -DOPS_ISA=neonbf16 -DOPS_NEON -march=armv8.2-a+bf16
$(BUILD)/%.amx.o: BASE += -DOPS_ISA=amx -DOPS_TILES -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512 -mamx-tile -mamx-bf16
$(BUILD)/%.amx_emulated.o: BASE += -DOPS_ISA=amx_emulated -DOPS_TILES -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512 -include tests/tiles.h
# The commit that the source is of, "+" with changes: for the one object that names it, which alone is made again when it
# changes. Empty where there is no git, or where git knows another tree than this one.
$(BUILD)/commit.h: FORCE
	@mkdir -p $(@D)
	@c=$$(git -c safe.directory='*' ls-files --error-unmatch kvsmith.c >/dev/null 2>&1 && git -c safe.directory='*' rev-parse --short=12 HEAD 2>/dev/null); \
	[ -z "$$c" ] || git -c safe.directory='*' diff --quiet HEAD 2>/dev/null || c=$$c+; \
	echo "#define KVSMITH_COMMIT \"$$c\"" | cmp -s - $@ || echo "#define KVSMITH_COMMIT \"$$c\"" >$@
$(BUILD)/f32/train/provenance.o $(BUILD)/f64/train/provenance.o: $(BUILD)/commit.h
$(BUILD)/f32/train/provenance.o $(BUILD)/f64/train/provenance.o: BASE += -include $(BUILD)/commit.h
FORCE:
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

# ---- CUDA ----------------------------------------------------------------------------------------------------------
# build/simt: the backend's sources, unchanged, as C++ over tests/simt, which runs them on the CPU. -fsanitize=thread is
# there for its calls on every access, which the emulation answers itself: the sanitizer's library is not linked.
CXX      = g++
NVCC    ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
EMU     := $(wildcard tests/simt/*.cpp)
# Entering and leaving functions, which gcc would report as well, is nothing to the emulation.
SEEN     = -O1 -fsanitize=thread $(if $(findstring clang,$(CXX)),,--param=tsan-instrument-func-entry-exit=0)
CXXBASE  = -std=c++17 -g $(WARN) -I. -Itests/simt/include -MMD -MP
SIMT_C  := ops/cuda/table.c ops/cuda/products.c ops/cuda/sequence.c ops/cuda/optimizer.c ops/cuda/open.c ops/cuda/fused.c ops/cuda/side.c
SIMT    := $(CU:%=$(BUILD)/simt/%.o) $(SIMT_C:%.c=$(BUILD)/f32/%.o) \
           $(patsubst %.cpp,$(BUILD)/simt/%.o,$(filter-out tests/simt/test_% tests/simt/nccl.cpp,$(EMU)))
SIMT_T  := $(patsubst %.cpp,$(BUILD)/simt/%.o,$(filter tests/simt/test_%,$(EMU))) $(BUILD)/simt/tests/simt/kernels.cu.o \
           $(patsubst %.c,$(BUILD)/f32/%.o,$(wildcard tests/test_ops*.c tests/simt/*.c) $(HELP))
$(BUILD)/simt/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "  EMU $@"
	$(Q)$(CXX) -x c++ $(CXXBASE) $(SEEN) -fno-exceptions -c -o $@ $<
$(BUILD)/simt/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	@echo "  CXX $@"
	$(Q)$(CXX) $(CXXBASE) -O3 -c -o $@ $<
# Opened by ranks on emulated devices as NCCL; the emulation that it needs is the program's.
$(BUILD)/simt/libnccl-emulated.so: tests/simt/nccl.cpp tests/simt/include/cuda_runtime.h tests/simt/simt.h Makefile
	@mkdir -p $(@D)
	@echo "  SO $@"
	$(Q)$(CXX) $(filter-out -MMD -MP,$(CXXBASE)) -O2 -fPIC -shared -o $@ $<
$(BUILD)/simt/kvsmith $(BUILD)/simt/tests-f32: | $(BUILD)/simt/libnccl-emulated.so
$(BUILD)/simt/kvsmith: $(BUILD)/f32/kvsmith.o $(SIMT) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CXX) -fopenmp -rdynamic $(LDFLAGS) -o $@ $^ $(CARRIED) -ldnnl $(LIBS)
$(BUILD)/simt/tests-f32: $(SIMT_T) $(SIMT) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CXX) -fopenmp -rdynamic $(LDFLAGS) -o $@ $^ $(CARRIED) -ldnnl $(LIBS) -lcriterion
simt: $(BUILD)/simt/kvsmith $(BUILD)/simt/tests-f32 $(BUILD)/gpu/run $(BUILD)/gpu/oracle.bin
simt-test: simt
	@tests/run.sh $(BUILD) simt
-include $(shell [ -d $(BUILD)/simt ] && find $(BUILD)/simt -name '*.d' 2>/dev/null)
# The same sources by clang++, which reads C++ differently in places: compiled, not linked.
simt-clang:
	$(MAKE) CXX=clang++ BUILD=$(BUILD)/clang $(CU:%=$(BUILD)/clang/simt/%.o) $(BUILD)/clang/simt/tests/simt/kernels.cu.o
# By nvcc. The last architecture's PTX goes along, for devices to come.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
ARCHS   := 80 90
GENCODE := $(foreach a,$(ARCHS),-gencode arch=compute_$a,code=sm_$a) -gencode arch=compute_90,code=compute_90
$(BUILD)/cuda/%.cu.o: %.cu $(wildcard ops/cuda/*.h) Makefile
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	$(Q)$(NVCC) -std=c++17 -O3 $(GENCODE) -Xcompiler -Wall,-Wextra -I. -c -o $@ $<
# The runtime is linked into the program; cuBLASLt is opened when the device is (lt_so.c), so that what is built here starts
# where neither toolkit nor driver is, and says so.
$(BUILD)/cuda/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC $@"
	$(Q)$(CC) $(BASE) $(CFLAGS) -isystem $(CUDA_HOME)/include -c -o $@ $<
CUDA_O  := $(CU:%=$(BUILD)/cuda/%.o) $(SIMT_C:%.c=$(BUILD)/f32/%.o) $(BUILD)/cuda/ops/cuda/lt_so.o $(BUILD)/f32/ops/cuda/cudnn_so.o
CARRIED  = -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'
CUDA_L   = -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib:$(CUDA_HOME)/lib64' $(CUDA_HOME)/lib64/libcudart_static.a -ldnnl $(LIBS) -ldl -lrt -lpthread
$(BUILD)/cuda/kvsmith: $(BUILD)/f32/kvsmith.o $(CUDA_O) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CXX) -fopenmp $(LDFLAGS) -o $@ $^ $(CUDA_L)
# The suites of simt-test that ask something of a device, for a device.
CUDA_T  := $(patsubst %.c,$(BUILD)/f32/%.o,$(wildcard tests/test_ops*.c tests/simt/test_cuda*.c) $(HELP))
$(BUILD)/cuda/tests-f32: $(CUDA_T) $(CUDA_O) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CXX) -fopenmp $(LDFLAGS) -o $@ $^ $(CUDA_L) -lcriterion
cuda: $(BUILD)/cuda/kvsmith
# Our part of NCCL's interface beside the header of one that is installed.
NCCL_CU := $(if $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h /usr/local/include/nccl.h),tests/simt/nccl_header.cu)
CUDNN_CU := $(if $(wildcard $(CUDA_HOME)/include/cudnn.h /usr/include/cudnn.h /usr/local/include/cudnn.h),tests/simt/cudnn_header.cu)
# gpu-check: what only a device can tell (docs/gpu.md). gpu-bundle puts all that it needs into one folder, gpu-check runs it;
# with ON=simt both on the emulation, as a rehearsal.
GPU_DIR  = $(BUILD)/gpu-check$(if $(filter simt,$(ON)),-simt)
GPU_KIND = $(if $(filter simt,$(ON)),simt,cuda)
$(BUILD)/gpu/run: $(patsubst %.c,$(BUILD)/f32/%.o,$(wildcard tests/gpu/*.c)) $(BUILD)/f32/lib.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' -ljansson -lm -ldl
# Gradients of the small models by the double build, which the device's are compared with.
$(BUILD)/gpu/oracle: $(patsubst %.c,$(BUILD)/f64/%.o,tests/oracle/write.c tests/zoo.c tests/check.c) $(BUILD)/f64/lib.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ $(LIBS) -lcriterion
$(BUILD)/gpu/oracle.bin: $(BUILD)/gpu/oracle
	$< $@
gpu-bundle: $(BUILD)/$(GPU_KIND)/kvsmith $(BUILD)/$(GPU_KIND)/tests-f32 $(BUILD)/gpu/run $(BUILD)/gpu/oracle.bin
	@tests/gpu/bundle.sh $(GPU_DIR) $^
# The first half hour on a device, rehearsed (tests/gpu/rehearse.sh); REHEARSE=short: its first parts.
gpu-rehearse:
	@$(MAKE) --no-print-directory ON=simt BUILD=$(BUILD) gpu-bundle
	@tests/gpu/rehearse.sh $(BUILD)/gpu-check-simt.tar.gz $(REHEARSE)
gpu-check: gpu-bundle
	$(GPU_DIR)/run --out $(GPU_DIR)-out $(if $(filter simt,$(ON)),--quick) $(GPU_ARGS)
# lt_so.c is compiled along: it has to know every function of cuBLASLt that the kernels' side calls.
cuda-check: $(BUILD)/cuda/ops/cuda/lt_so.o
	@tests/simt/spills.sh $(NVCC) $(BUILD)/cuda-check $(ARCHS) -- $(CU) tests/simt/kernels.cu $(NCCL_CU) $(CUDNN_CU)

# Plans of cuDNN for the attention of every configuration, without a device, where the library is. It wants no header of cuDNN.
$(BUILD)/cudnn/plans: $(BUILD)/f32/tests/cudnn/plans.o $(BUILD)/f32/ops/cuda/cudnn_so.o $(BUILD)/f32/lib.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS) -ldl
cudnn-check: $(BUILD)/cudnn/plans
	@tests/cudnn/check.sh $< $(BUILD)/cudnn $(filter-out configs/compare%,$(wildcard configs/*.yaml))

# aarch64 under an emulator, beside this machine's own program.
arm-check: $(BUILD)/kvsmith
	@ARM_CCACHE="$(filter ccache,$(CC))" tests/arm/check.sh "$(ARM_ROOT)" $< $(BUILD)/arm

.PHONY: FORCE arm-check cudnn-check simt simt-test simt-clang cuda cuda-check gpu-bundle gpu-check gpu-rehearse
.PHONY: double asan test demo bench fuzz faults big-text format format-check docs clean
FAULTS := $(BUILD)/faults/kvsmith $(BUILD)/faults/driver $(BUILD)/faults/inject.so
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
# Faults: one failed call at a time, and kill -9, over the commands of tests/faults/driver.c. The program is that in double,
# which needs no code generated by oneDNN. SHARE=1/4 does a quarter of the cases, JOBS=n as many at once.
$(BUILD)/faults/kvsmith: $(BUILD)/f64/kvsmith.o $(BUILD)/f64/lib.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS)
$(BUILD)/faults/driver: tests/faults/driver.c tests/faults/tree.c tests/faults/fault.h tests/faults/tree.h Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -g -O1 $(WARN) -Wno-missing-field-initializers -Wno-format-truncation -D_GNU_SOURCE -I. -o $@ $(filter %.c,$^)
$(BUILD)/faults/inject.so: tests/faults/inject.c tests/faults/fault.h Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu11 -g -O1 $(WARN) -D_GNU_SOURCE -I. -fPIC -shared -o $@ $< -ldl
faults: $(FAULTS)
	@tests/faults/run.sh $(BUILD) $(SHARE)
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
