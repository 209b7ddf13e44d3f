/* comm_stream.c: the calls of ops/comm_stream.c that comm_stream.cu answers. */
#include "ops/cuda/comm_stream.h"

const BackendCommStream cuda_comm_stream = {
    .start = cuda_comm_stream_start,
    .stop = cuda_comm_stream_stop,
    .stream = cuda_comm_stream_stream,
    .take = cuda_comm_stream_take,
    .give = cuda_comm_stream_give,
    .follow = cuda_comm_stream_follow,
    .upload = cuda_comm_stream_upload,
    .download = cuda_comm_stream_download,
    .mark = cuda_comm_stream_mark,
    .done = cuda_comm_stream_done,
    .lead = cuda_comm_stream_lead,
    .why = cuda_comm_stream_why,
    .library = cuda_comm_stream_library,
};
