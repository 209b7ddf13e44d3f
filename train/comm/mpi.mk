# mpi.mk: the library that knows MPI; the Makefile includes it.
# What knows MPI: only where its development files are, and opened only by ranks that ask for it.
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)
ifneq ($(MPI_LIBS),)
MPI_SO := $(BUILD)/kvsmith-mpi.so
$(BUILD)/kvsmith $(BUILD)/tests-f32: | $(MPI_SO)
endif
$(BUILD)/kvsmith-mpi.so: train/comm/comm_mpi_so.c train/comm/comm_mpi_so.h Makefile
	@mkdir -p $(@D)
	@echo "  SO $@"
	$(Q)$(CC) -std=gnu11 -g -O2 $(WARN) -fPIC -shared $(MPI_CFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) $(MPI_LIBS)
