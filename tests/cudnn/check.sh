#!/bin/bash
# check.sh PLANS DIR CONFIG...: plans of cuDNN for the attention of every configuration, without a device; skipped by name
# where no libcudnn.so.9 is. PLANS is the program of plans.c. Some of cuDNN's libraries are linked with the driver's,
# which a machine without a device has not: in its place comes one made here, whose functions say that there is no device,
# but for what loads code, which says that it did. Nothing is ever run.
set -u
plans=$1 dir=$2
shift 2
found=
for d in "${CUDNN_HOME:+$CUDNN_HOME/lib}" "${CUDNN_HOME:+$CUDNN_HOME/lib64}" "${CUDA_HOME:+$CUDA_HOME/lib64}" /usr/local/cuda/lib64 /usr/lib/x86_64-linux-gnu; do
    [ -n "$d" ] && [ -e "$d/libcudnn.so.9" ] && found=$d && break
done
[ -n "$found" ] || found=$(python3 -c 'import nvidia.cudnn, os; print(os.path.join(list(nvidia.cudnn.__path__)[0], "lib"))' 2>/dev/null)
if [ ! -e "$found/libcudnn.so.9" ]; then
    echo "skipped: no libcudnn.so.9 in CUDNN_HOME/lib, CUDA_HOME/lib64, /usr/local/cuda/lib64, /usr/lib/x86_64-linux-gnu or the Python package nvidia-cudnn"
    exit 0
fi
mkdir -p "$dir" || exit 1
# Names that the libraries look for, found as texts in them.
own='cuInit|cuDriverGetVersion|cuGetProcAddress(_v2)?|cuLibraryLoadData|cuLibraryGetKernel|cuLibraryGetModule|cuLibraryUnload|cuKernelGetFunction|cuModuleLoadData(Ex)?|cuModuleGetFunction|cuModuleUnload|cu(Func|Kernel)SetAttribute'
{
    cat <<'C'
#include <dlfcn.h>
enum { OK, NO_DEVICE = 100, NOT_FOUND = 500 };
static char there;
#define GIVES(name) int name(void **p) { *p = &there; return OK; }
#define DOES(name) int name(void) { return OK; }
#define NONE(name) int name(void) { return NO_DEVICE; }
GIVES(cuLibraryLoadData) GIVES(cuLibraryGetKernel) GIVES(cuLibraryGetModule) GIVES(cuKernelGetFunction)
GIVES(cuModuleLoadData) GIVES(cuModuleLoadDataEx) GIVES(cuModuleGetFunction)
DOES(cuLibraryUnload) DOES(cuModuleUnload) DOES(cuFuncSetAttribute) DOES(cuKernelSetAttribute)
NONE(cuInit)
int cuDriverGetVersion(int *v) { *v = 13000; return OK; }
int cuGetProcAddress(const char *name, void **p) { return (*p = dlsym(RTLD_DEFAULT, name)) ? OK : NOT_FOUND; }
int cuGetProcAddress_v2(const char *name, void **p, int version, unsigned long long flags, int *how) {
    (void)version, (void)flags;
    int s = cuGetProcAddress(name, p);
    if (how) *how = s != OK;
    return s;
}
C
    grep -ahoE 'cu[A-Z][A-Za-z0-9]{3,60}(_v[0-9]+)?(_ptsz|_ptds)?' "$found"/libcudnn*.so.9 | sort -u | grep -vxE "$own" | sed 's/.*/NONE(&)/'
} >"$dir/libcuda.c"
${CC:-cc} -shared -fPIC -fno-builtin -w -Wl,-soname,libcuda.so.1 -o "$dir/libcuda.so.1" "$dir/libcuda.c" -ldl || exit 1
LD_LIBRARY_PATH=$dir:$found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CUDNN_HOME='' "$plans" tests/cudnn/h100.json tests/cudnn/refused.txt "$@"
