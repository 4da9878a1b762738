// The functions of the fake driver: counting, failures on demand, contexts; then memory.h.
#include "fakecuda.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "memory.h"

using namespace kvc::cuda;

namespace {

// number is an environment variable's, or 0.
size_t number(const char * variable) {
    const char * text = getenv(variable);
    return text != nullptr ? strtoull(text, nullptr, 10) : 0;
}

struct World {
    std::mutex       mutex;
    fakecuda::Device device;
    fakecuda_config  config{};
    std::map<std::string, uint64_t> calls;
    uint64_t    all_calls = 0, violations = 0, contexts = 0, streams = 0;
    std::string violation;
    // Failures on demand.
    std::string fail_name;
    uint64_t    fail_in = 0, fail_more = 0, failed = 0;
    int         fail_result = 0;
    bool        started = false;
    void (*wait)(void *) = nullptr;
    int (*busy)(void *) = nullptr;
    void * queue = nullptr;

    void configure(const fakecuda_config & c) {
        config = c;
        config.memory      = c.memory != 0 ? c.memory : 64u << 20;
        config.granularity = c.granularity != 0 ? c.granularity : 2u << 20;
        config.devices     = c.devices != 0 ? c.devices : 1;
        device.configure(config.memory, config.granularity);
    }

    World() {
        fakecuda_config c{};
        c.memory      = number("FAKECUDA_MEMORY");
        c.granularity = number("FAKECUDA_GRANULARITY");
        c.devices     = int(number("FAKECUDA_DEVICES"));
        configure(c);
    }

    // A process must not leave device memory behind it.
    ~World() {
        if (device.handles() + device.mappings() + device.reservations() + contexts + streams > 0 || violations > 0) {
            fprintf(stderr, "fakecuda: at exit %zu handles, %zu mappings, %zu reservations, %zu contexts, %zu streams; %zu violations: %s\n",
                    device.handles(), device.mappings(), device.reservations(), size_t(contexts), size_t(streams), size_t(violations),
                    violation.c_str());
            _Exit(97);
        }
    }
};

World & world() {
    static World w;
    return w;
}

thread_local std::vector<Context> stack;

// A Call counts, and decides whether this call is one that shall fail.
class Call {
public:
    Call(const char * name, bool needs_context) : lock_(w.mutex) {
        w.calls[name]++;
        w.all_calls++;
        if (w.fail_in > 0 && (w.fail_name.empty() || w.fail_name == name)) {
            if (w.fail_in > 1) {
                w.fail_in--;
            } else {
                result = w.fail_result;
                w.failed++;
                w.fail_in = w.fail_more-- > 0 ? 1 : 0;
            }
        }
        if (result == success && needs_context && stack.empty()) {
            why    = std::string(name) + " without a current context";
            result = 201;
        }
        if (result == success && !w.started && strcmp(name, "cuInit") != 0) {
            why    = std::string(name) + " before cuInit";
            result = not_initialized;
        }
    }
    ~Call() {
        if (!why.empty()) {
            w.violation = w.violations++ == 0 ? why : w.violation;
        }
    }
    bool stop() const { return result != success; }

    World &     w = world();
    Result      result = success;
    std::string why; // the rule that the call broke

private:
    std::lock_guard<std::mutex> lock_;
};

}  // namespace

// The device's work is asked before and after a while without a mapping: what is queued meanwhile
// would find none.
static void die_if_busy() {
    int (*busy)(void *);
    void * queue;
    {
        std::lock_guard<std::mutex> lock(world().mutex);
        busy  = world().busy;
        queue = world().queue;
    }
    if (busy == nullptr) {
        return;
    }
    const bool before = busy(queue) != 0;
    usleep(100);
    if (before || busy(queue) != 0) {
        fprintf(stderr, "fakecuda: a mapping is taken away while work is queued or runs\n");
        abort();
    }
}

#define BEGIN(name, needs_context)     \
    Call call(name, needs_context);    \
    if (call.stop()) {                 \
        return call.result;            \
    }                                  \
    World & w = call.w;                \
    (void) w

#define REQUIRE(condition, result)                              \
    if (!(condition)) {                                         \
        call.why = std::string(__func__) + ": not " #condition; \
        return result;                                          \
    }

extern "C" {

Result cuInit(unsigned flags) {
    BEGIN("cuInit", false);
    REQUIRE(flags == 0, invalid_value);
    w.started = true;
    return success;
}

Result cuDeviceGet(Device * out, int ordinal) {
    BEGIN("cuDeviceGet", false);
    if (ordinal < 0 || ordinal >= w.config.devices) {
        return invalid_device;
    }
    *out = ordinal + 100; // a device is not its number
    return success;
}

Result cuDeviceGetAttribute(int * out, int attribute, Device device) {
    BEGIN("cuDeviceGetAttribute", false);
    REQUIRE(device >= 100 && device < 100 + w.config.devices && attribute == attribute_vmm, invalid_value);
    *out = w.config.no_vmm == 0;
    return success;
}

Result cuDevicePrimaryCtxRetain(Context * out, Device device) {
    BEGIN("cuDevicePrimaryCtxRetain", false);
    REQUIRE(device >= 100 && device < 100 + w.config.devices, invalid_device);
    w.contexts++;
    *out = reinterpret_cast<Context>(uintptr_t(0xC000 + device));
    return success;
}

Result cuDevicePrimaryCtxRelease_v2(Device device) {
    BEGIN("cuDevicePrimaryCtxRelease_v2", false);
    REQUIRE(device >= 100 && w.contexts > 0, invalid_value);
    w.contexts--;
    return success;
}

Result cuCtxPushCurrent_v2(Context context) {
    BEGIN("cuCtxPushCurrent_v2", false);
    REQUIRE(context != nullptr && w.contexts > 0, 201);
    stack.push_back(context);
    return success;
}

// Pop works also where it reports a failure, as the driver's does.
Result cuCtxPopCurrent_v2(Context * out) {
    Call call("cuCtxPopCurrent_v2", true);
    if (!stack.empty()) {
        *out = stack.back();
        stack.pop_back();
    }
    return call.result;
}

Result cuCtxSynchronize(void) {
    void (*wait)(void *) = nullptr;
    void * queue = nullptr;
    {
        BEGIN("cuCtxSynchronize", true);
        wait  = w.wait;
        queue = w.queue;
    }
    if (wait != nullptr) {
        wait(queue);
    }
    return success;
}

Result cuStreamCreate(Stream * out, unsigned flags) {
    BEGIN("cuStreamCreate", true);
    REQUIRE(flags == stream_non_blocking, invalid_value);
    w.streams++;
    *out = reinterpret_cast<Stream>(uintptr_t(0x5000));
    return success;
}

Result cuStreamDestroy_v2(Stream stream) {
    BEGIN("cuStreamDestroy_v2", true);
    REQUIRE(stream != nullptr && w.streams > 0, invalid_value);
    w.streams--;
    return success;
}

Result cuStreamSynchronize(Stream stream) {
    BEGIN("cuStreamSynchronize", true);
    REQUIRE(stream != nullptr && w.streams > 0, invalid_value);
    return success;
}

Result cuMemsetD8Async(Address at, unsigned char value, size_t bytes, Stream stream) {
    BEGIN("cuMemsetD8Async", true);
    REQUIRE(stream != nullptr && w.streams > 0, invalid_value);
    return w.device.fill(at, bytes, value, call.why);
}

// Of memory in one piece or not; the fake's device memory is the host's.
Result cuMemcpyDtoH_v2(void * to, Address from, size_t bytes) {
    BEGIN("cuMemcpyDtoH_v2", true);
    return w.device.read(to, from, bytes, call.why);
}

Result cuMemGetInfo_v2(size_t * free_bytes, size_t * total) {
    BEGIN("cuMemGetInfo_v2", true);
    *free_bytes = w.device.memory() - w.device.used();
    *total      = w.device.memory();
    return success;
}

Result cuGetErrorString(Result result, const char ** out) {
    BEGIN("cuGetErrorString", false);
    *out = result == out_of_memory ? "out of memory" : "a failure of the fake driver";
    return success;
}

Result cuMemGetAllocationGranularity(size_t * out, const AllocationProperties * p, int option) {
    BEGIN("cuMemGetAllocationGranularity", true);
    REQUIRE(p->type == allocation_pinned && p->location.type == location_device && option == granularity_minimum, invalid_value);
    *out = w.device.granularity();
    return success;
}

Result cuMemAddressReserve(Address * out, size_t size, size_t alignment, Address wish, unsigned long long flags) {
    BEGIN("cuMemAddressReserve", true);
    REQUIRE(wish == 0 && flags == 0, invalid_value);
    return w.device.reserve(size, alignment, out, call.why);
}

Result cuMemAddressFree(Address at, size_t size) {
    BEGIN("cuMemAddressFree", true);
    return w.device.unreserve(at, size, call.why);
}

Result cuMemCreate(Handle * out, size_t size, const AllocationProperties * p, unsigned long long flags) {
    BEGIN("cuMemCreate", true);
    REQUIRE(p->type == allocation_pinned && p->location.type == location_device && p->location.id < w.config.devices && flags == 0 &&
            p->handle_types == 0 && p->win32_metadata == nullptr, invalid_value);
    return w.device.create(size, out, call.why);
}

Result cuMemRelease(Handle handle) {
    BEGIN("cuMemRelease", true);
    return w.device.release(handle, call.why);
}

Result cuMemMap(Address at, size_t size, size_t offset, Handle handle, unsigned long long flags) {
    BEGIN("cuMemMap", true);
    REQUIRE(flags == 0, invalid_value);
    return w.device.map(at, size, offset, handle, call.why);
}

Result cuMemUnmap(Address at, size_t size) {
    die_if_busy();
    BEGIN("cuMemUnmap", true);
    return w.device.unmap(at, size, call.why);
}

Result cuMemSetAccess(Address at, size_t size, const AccessDescription * access, size_t count) {
    BEGIN("cuMemSetAccess", true);
    REQUIRE(count == 1 && access->flags == access_read_write && access->location.type == location_device, invalid_value);
    return w.device.allow(at, size, call.why);
}

void fakecuda_reset(const fakecuda_config * config) {
    World & w = world();
    std::lock_guard<std::mutex> lock(w.mutex);
    w.configure(config != nullptr ? *config : fakecuda_config{});
    w.calls.clear();
    w.all_calls = w.violations = w.fail_in = w.failed = w.contexts = w.streams = 0;
    w.violation.clear();
}

void fakecuda_fail(const char * name, uint64_t nth, int result, uint64_t more) {
    World & w = world();
    std::lock_guard<std::mutex> lock(w.mutex);
    w.fail_name   = name != nullptr ? name : "";
    w.fail_in     = nth;
    w.fail_result = result;
    w.fail_more   = more;
    w.failed      = 0;
}

uint64_t fakecuda_failed(void) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().failed;
}

void fakecuda_queue(void (*wait)(void *), int (*busy)(void *), void * queue) {
    World & w = world();
    std::lock_guard<std::mutex> lock(w.mutex);
    w.wait  = wait;
    w.busy  = busy;
    w.queue = queue;
}

uint64_t fakecuda_calls(const char * name) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().calls[name];
}

void fakecuda_get_state(fakecuda_state * out) {
    World & w = world();
    std::lock_guard<std::mutex> lock(w.mutex);
    *out = {w.device.handles(), w.device.mappings(), w.device.reservations(), w.contexts, w.streams,
            stack.size(), w.device.used(), w.violations, w.all_calls};
}

const char * fakecuda_violation(void) {
    return world().violation.c_str();
}

uint64_t fakecuda_shown(const void * address) {
    std::lock_guard<std::mutex> lock(world().mutex);
    return world().device.shown((uint64_t) address);
}

}  // extern "C"
