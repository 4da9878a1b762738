// The part of NVIDIA's driver interface that is used here, declared after the CUDA Driver API
// reference manual, so that no CUDA is needed to build. tests/fakecuda implements it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc::cuda {

typedef int      Result; // CUresult
typedef int      Device;
typedef uint64_t Address; // CUdeviceptr
typedef uint64_t Handle;  // CUmemGenericAllocationHandle
struct ContextTag;
struct StreamTag;
typedef ContextTag * Context;
typedef StreamTag *  Stream;

constexpr Result success         = 0;
constexpr Result invalid_value   = 1;
constexpr Result out_of_memory   = 2;
constexpr Result not_initialized = 3;
constexpr Result invalid_device  = 101;
constexpr Result illegal_address = 700;

constexpr int attribute_vmm = 102; // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED

constexpr int allocation_pinned   = 1; // CU_MEM_ALLOCATION_TYPE_PINNED
constexpr int location_device     = 1; // CU_MEM_LOCATION_TYPE_DEVICE
constexpr int granularity_minimum = 0; // CU_MEM_ALLOC_GRANULARITY_MINIMUM
constexpr int access_read_write   = 3; // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
constexpr unsigned stream_non_blocking = 1; // CU_STREAM_NON_BLOCKING

struct Location { // CUmemLocation
    int type;
    int id;
};

struct AllocationProperties { // CUmemAllocationProp
    int      type;
    int      handle_types;
    Location location;
    void *   win32_metadata;
    uint8_t  compression;
    uint8_t  gpu_direct_rdma;
    uint16_t usage;
    uint8_t  reserved[4];
};

struct AccessDescription { // CUmemAccessDesc
    Location location;
    int      flags;
};

static_assert(sizeof(AllocationProperties) == 32 && sizeof(AccessDescription) == 12, "the driver's layout");

// Name in the table, name in the library, arguments.
#define KVC_CUDA_FUNCTIONS(X)                                                                     \
    X(init,             cuInit,                        (unsigned flags))                          \
    X(device_get,       cuDeviceGet,                   (Device *, int ordinal))                   \
    X(device_attribute, cuDeviceGetAttribute,          (int *, int attribute, Device))            \
    X(context_retain,   cuDevicePrimaryCtxRetain,      (Context *, Device))                       \
    X(context_release,  cuDevicePrimaryCtxRelease_v2,  (Device))                                  \
    X(context_push,     cuCtxPushCurrent_v2,           (Context))                                 \
    X(context_pop,      cuCtxPopCurrent_v2,            (Context *))                               \
    X(context_wait,     cuCtxSynchronize,              (void))                                    \
    X(stream_create,    cuStreamCreate,                (Stream *, unsigned flags))                \
    X(stream_destroy,   cuStreamDestroy_v2,            (Stream))                                  \
    X(stream_wait,      cuStreamSynchronize,           (Stream))                                  \
    X(fill,             cuMemsetD8Async,               (Address, unsigned char, size_t, Stream))  \
    X(memory_info,      cuMemGetInfo_v2,               (size_t * free, size_t * total))           \
    X(error_text,       cuGetErrorString,              (Result, const char **))                   \
    X(granularity,      cuMemGetAllocationGranularity, (size_t *, const AllocationProperties *, int option)) \
    X(reserve,          cuMemAddressReserve,           (Address *, size_t, size_t alignment, Address wish, unsigned long long flags)) \
    X(unreserve,        cuMemAddressFree,              (Address, size_t))                         \
    X(create,           cuMemCreate,                   (Handle *, size_t, const AllocationProperties *, unsigned long long flags)) \
    X(release,          cuMemRelease,                  (Handle))                                  \
    X(map,              cuMemMap,                      (Address, size_t, size_t offset, Handle, unsigned long long flags)) \
    X(unmap,            cuMemUnmap,                    (Address, size_t))                         \
    X(set_access,       cuMemSetAccess,                (Address, size_t, const AccessDescription *, size_t count))

// A Driver is the functions of one library.
struct Driver {
#define KVC_CUDA_MEMBER(member, name, arguments) Result(*member) arguments;
    KVC_CUDA_FUNCTIONS(KVC_CUDA_MEMBER)
#undef KVC_CUDA_MEMBER

    // text is the driver's sentence for a result.
    const char * text(Result result) const {
        const char * t = nullptr;
        return error_text(result, &t) == success && t != nullptr ? t : "unknown error";
    }
};

// load finds the driver. The library is never unloaded: it has threads of its own. `name` may
// be null: $KVC_CUDA_LIBRARY, else libcuda.so.1. KVC_E_NO_VMM where the library is missing, or
// too old for one of the functions.
int load(const char * name, const Driver ** out);

}  // namespace kvc::cuda
