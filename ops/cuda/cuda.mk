# cuda.mk: the CUDA backend, on the emulation and by nvcc; the Makefile includes it.
# build/simt: the backend's sources, unchanged, as C++ over tests/simt, which runs them on the CPU. -fsanitize=thread is
# there for its calls on every access, which the emulation answers itself: the sanitizer's library is not linked.
CXX      = $(if $(filter ccache,$(CC)),ccache )g++
NVCC    ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) nvcc)
EMU     := $(wildcard tests/simt/*.cpp)
# Entering and leaving functions, which gcc would report as well, is nothing to the emulation.
SEEN     = -O1 -fsanitize=thread $(if $(findstring clang,$(CXX)),,--param=tsan-instrument-func-entry-exit=0)
CXXBASE  = -std=c++17 -g $(HERE) $(WARN) -I. -Itests/simt/include -MMD -MP
SIMT_C  := $(filter-out %_so.c,$(wildcard ops/cuda/host/*.c))
SIMT    := $(CU:%=$(BUILD)/simt/%.o) $(SIMT_C:%.c=$(BUILD)/f32/%.o) \
           $(patsubst %.cpp,$(BUILD)/simt/%.o,$(filter-out tests/simt/test_% tests/simt/nccl.cpp,$(EMU)))
SIMT_T  := $(patsubst %.cpp,$(BUILD)/simt/%.o,$(filter tests/simt/test_%,$(EMU))) $(BUILD)/simt/tests/simt/kernels.cu.o \
           $(patsubst %.c,$(BUILD)/f32/%.o,$(wildcard tests/ops/test_ops*.c tests/simt/*.c) $(HELP))
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
-include $(shell find $(wildcard $(BUILD)/simt $(BUILD)/cuda /dev/null) -name '*.d' 2>/dev/null)
# The same sources by clang++, which reads C++ differently in places: compiled, not linked.
simt-clang:
	$(MAKE) CXX=clang++ BUILD=$(BUILD)/clang $(CU:%=$(BUILD)/clang/simt/%.o) $(BUILD)/clang/simt/tests/simt/kernels.cu.o
# By nvcc. The last architecture's PTX goes along, for devices to come.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
ARCHS   := 80 90
GENCODE := $(foreach a,$(ARCHS),-gencode arch=compute_$a,code=sm_$a) -gencode arch=compute_90,code=compute_90
$(BUILD)/cuda/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "  NVCC $@"
	$(Q)$(NVCC) -std=c++17 -O3 -MMD -MP -MF $(@:.o=.d) $(GENCODE) -Xcompiler -Wall,-Wextra -I. -c -o $@ $<
# The runtime is linked into the program; cuBLASLt is opened when the device is (lt_so.c), so that what is built here starts
# where neither toolkit nor driver is, and says so.
$(BUILD)/cuda/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC $@"
	$(Q)$(CC) $(BASE) $(CFLAGS) -isystem $(CUDA_HOME)/include -c -o $@ $<
CUDA_O  := $(CU:%=$(BUILD)/cuda/%.o) $(SIMT_C:%.c=$(BUILD)/f32/%.o) $(BUILD)/cuda/ops/cuda/host/lt_so.o $(BUILD)/f32/ops/cuda/host/cudnn_so.o
CARRIED  = -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib'
CUDA_L   = -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../lib:$(CUDA_HOME)/lib64' $(CUDA_HOME)/lib64/libcudart_static.a -ldnnl $(LIBS) -ldl -lrt -lpthread
$(BUILD)/cuda/kvsmith: $(BUILD)/f32/kvsmith.o $(CUDA_O) $(BUILD)/f32/lib.a
	@echo "  LD $@"
	$(Q)$(CXX) -fopenmp $(LDFLAGS) -o $@ $^ $(CUDA_L)
# The suites of simt-test that ask something of a device, for a device.
CUDA_T  := $(patsubst %.c,$(BUILD)/f32/%.o,$(wildcard tests/ops/test_ops*.c tests/simt/test_cuda*.c) $(HELP))
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
$(BUILD)/gpu/oracle: $(patsubst %.c,$(BUILD)/f64/%.o,tests/oracle/write.c tests/lib/zoo.c tests/lib/check.c) $(BUILD)/f64/lib.a
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
cuda-check: $(BUILD)/cuda/ops/cuda/host/lt_so.o
	@tests/simt/spills.sh $(NVCC) $(BUILD)/cuda-check $(ARCHS) -- $(CU) tests/simt/kernels.cu $(NCCL_CU) $(CUDNN_CU)

# Plans of cuDNN for the attention of every configuration, without a device, where the library is. It wants no header of cuDNN.
$(BUILD)/cudnn/plans: $(BUILD)/f32/tests/cudnn/plans.o $(BUILD)/f32/ops/cuda/host/cudnn_so.o $(BUILD)/f32/lib.a
	@mkdir -p $(@D)
	@echo "  LD $@"
	$(Q)$(CC) $(BASE) $(LDFLAGS) -o $@ $^ -ldnnl $(LIBS) -ldl
cudnn-check: $(BUILD)/cudnn/plans
	@tests/cudnn/check.sh $< $(BUILD)/cudnn $(filter-out configs/compare%,$(wildcard configs/*.yaml))

