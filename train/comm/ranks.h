/* ranks.h: finds out which rank of how many this process is, from its launcher's environment variables, and opens the
 * Comm for it. The commands `train` and `bench comm` call it when they start.
 *
 * The first launcher found in this order is used; every other found must agree with it:
 *
 *   launch     KVSMITH_RANK, KVSMITH_WORLD             `kvsmith launch`, see cmd_launch.c
 *   torchrun   RANK, WORLD_SIZE, LOCAL_RANK            LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_*
 *   slurm      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID   of a step (srun): SLURM_STEP_NODELIST is set, too;
 *                                                    MASTER_ADDR, MASTER_PORT
 *   openmpi    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK    _LOCAL_SIZE
 *   mpich      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID         MPI_LOCALNRANKS
 *
 * KVSMITH_SECRET, or KVSMITH_SECRET_FILE, belongs to MASTER_ADDR: ranks on several hosts identify each other by it.
 *
 * Sources: torch.distributed.run's documentation, srun(1) "OUTPUT ENVIRONMENT VARIABLES", mpirun(1) of Open MPI 4.1,
 * MPICH's Hydra. A batch script of Slurm has SLURM_PROCID without being a rank: it has no step's list of nodes. */
#pragma once
#include "comm.h"

typedef enum {
    RANKS_AUTO,
    RANKS_ALONE,
    RANKS_LAUNCH,
    RANKS_TORCHRUN,
    RANKS_SLURM,
    RANKS_OPENMPI,
    RANKS_MPICH,
    NRANKS_FROM
} RanksFrom;
const char *ranks_from_name(RanksFrom); /* "torchrun" */

typedef struct {
    RanksFrom from;
    int rank, world;                  /* 0 of 1 when alone */
    int local, locals;                /* on this host; locals 0: the launcher did not set it */
    int node, restart;                /* -1: not set; 0 */
    char job[160];                    /* name of this start of the job; "" if unknown */
    char master[256];                 /* MASTER_ADDR, "" when not given */
    int port;                         /* MASTER_PORT, 0 when not given */
    const char *secret, *secret_file; /* parts of the environment; NULL: not given */
    int fd;                           /* launch: the memory that the ranks share; else -1 */
    double deadline;                  /* seconds, 0: not set */
} Ranks;

/* From `env` ("NAME=value" strings, NULL-ended); want other than RANKS_AUTO: only that launcher. EXIT_INPUT: two
 * launchers that contradict each other, a missing variable, an invalid value. */
bool ranks_find(Ranks *, RanksFrom want, char *const *env, Err *);
/* The secret of the rendezvous (rendezvous.h), malloc'ed, with its end in *n. NULL with *n 0: none was given, or `e` is
 * set: it is too short, or its file is readable by others. */
char *ranks_secret(const Ranks *, size_t *n, Err *e);
/* True if "NAME=value" is one of the variables above. */
bool ranks_variable(const char *text);
/* "rank 0 of 4 (RANK, WORLD_SIZE of torchrun), 4 on this host" into out; returns it. */
const char *ranks_say(const Ranks *, char out[256]);
/* Threads of this rank if the user gives none: those of OMP_NUM_THREADS (not under torchrun, which sets it itself),
 * else the processors that it may use, divided by the ranks of this host unless its launcher has bound it to some of
 * them. */
int ranks_threads(const Ranks *, int asked);

typedef enum { COMM_AUTO, COMM_SHM, COMM_MPI, COMM_NCCL, NCOMM_BY } CommBy;
const char *comm_by_name(CommBy); /* "shm" */
enum { COMM_DEADLINE = 300 };
typedef struct {
    CommBy by;       /* AUTO: nccl between GPUs; else mpi under mpirun and over several hosts, else shm */
    bool device;     /* each rank computes on the device with its index on the host */
    double deadline; /* 0: the launcher's, else COMM_DEADLINE seconds */
    uint64_t config; /* a hash that must be equal on all ranks if they meet by a rendezvous (rendezvous.h) */
    const char
        *store; /* file by which ranks of nccl meet (rendezvous_file.h); "" or NULL: by MPI, a socket of this host, or
                          MASTER_ADDR */
} RanksHow;
/* Opens the Comm of these ranks; *out is NULL for a single rank, unless nccl is asked for. */
bool ranks_open(const Ranks *, const RanksHow *, Comm **out, Err *);
