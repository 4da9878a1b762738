#include "backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "buffer.h"
#include "cpu.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "ledger.h"
#include "memory.h"
#include "settings.h"

namespace fakegpu {

namespace {

struct Backend {
    DeviceContext *         device;
    ggml_backend_t          cpu;
    std::shared_ptr<Stream> stream  = Stream::create();
    size_t                  scratch = 0; // bytes wanted
    size_t                  taken   = 0; // bytes of them that the ledger has
};

Backend & backend_of(ggml_backend_t backend) {
    return *(Backend *) backend->context;
}

const char * get_name(ggml_backend_t backend) {
    return backend_of(backend).device->name.c_str();
}

void reset(ggml_backend_t backend) {
    Backend & b = backend_of(backend);
    give_memory(b.device->number, b.taken);
    b.scratch = b.taken = 0;
}

void free_backend(ggml_backend_t backend) {
    Backend & b = backend_of(backend);
    b.stream->wait();
    b.cpu->iface.free(b.cpu);
    reset(backend);
    delete &b;
    delete backend;
}

void check_type(ggml_backend_t backend, const ggml_tensor * tensor) {
    const ggml_tensor * owner = tensor->view_src != nullptr ? tensor->view_src : tensor;
    GGML_ASSERT(owner->buffer->buft == backend_of(backend).device->type && "unsupported buffer type");
}

// Pageable memory is read at the call, as CUDA stages it; pinned memory when the turn comes.
void set_tensor_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    check_type(backend, tensor);
    char * to = (char *) tensor->data + offset;
    if (is_pinned(data)) {
        backend_of(backend).stream->push([=] { memcpy(to, data, size); });
        return;
    }
    const std::vector<char> staged((const char *) data, (const char *) data + size);
    backend_of(backend).stream->push([=] { memcpy(to, staged.data(), staged.size()); });
}

void get_tensor_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    check_type(backend, tensor);
    const char * from = (const char *) tensor->data + offset;
    backend_of(backend).stream->push([=] { memcpy(data, from, size); });
}

void synchronize(ggml_backend_t backend) {
    backend_of(backend).stream->wait();
}

// take_scratch counts the memory of CUDA's pool, which only grows.
bool take_scratch(Backend & b, const ggml_cgraph * graph, bool alloc) {
    b.scratch = std::max(b.scratch, scratch_bytes(graph));
    if (!alloc || b.scratch <= b.taken) {
        return true;
    }
    if (!take_memory(b.device->number, b.scratch - b.taken)) {
        return false;
    }
    b.taken = b.scratch;
    return true;
}

// Delays differ, from nothing to twice the mean.
void sleep_a_little() {
    static thread_local unsigned seed = 1;
    if (settings().delay_us > 0) {
        usleep(rand_r(&seed) % (2 * settings().delay_us + 1));
    }
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph, int batch_size) {
    Backend & b = backend_of(backend);
    if (!take_scratch(b, graph, true)) {
        GGML_ABORT("fakegpu: out of memory in a graph");
    }
    auto captured = std::make_shared<CapturedGraph>(graph);
    ggml_backend_t cpu = b.cpu;
    b.stream->push([=] {
        sleep_a_little();
        if (cpu->iface.graph_compute(cpu, captured->graph(), batch_size) != GGML_STATUS_SUCCESS) {
            GGML_ABORT("fakegpu: a graph failed");
        }
        publish_memory();
    });
    return GGML_STATUS_SUCCESS;
}

ggml_status graph_reserve(ggml_backend_t backend, ggml_cgraph * graph, bool alloc) {
    return take_scratch(backend_of(backend), graph, alloc) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

size_t buffer_size(ggml_backend_t backend) {
    return backend_of(backend).scratch;
}

void event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    record_event(event, *backend_of(backend).stream);
}

void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    wait_for_event(event, *backend_of(backend).stream);
}

bool is_ours(ggml_backend_t backend) {
    return backend->iface.get_name == get_name;
}

// on_own_device tells that a tensor is in memory of the backend's device.
bool on_own_device(const Backend & b, const ggml_tensor * tensor) {
    const ggml_tensor * owner = tensor->view_src != nullptr ? tensor->view_src : tensor;
    return is_device_buffer(tensor->buffer) && is_device_buffer(owner->buffer) &&
           ((BufferContext *) owner->buffer->context)->device == b.device->number;
}

// The source's stream copies, and the destination's waits for it.
bool cpy_tensor_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src, ggml_tensor * dst) {
    if (!is_ours(backend_src) || !is_ours(backend_dst)) {
        return false;
    }
    Backend & from = backend_of(backend_src);
    Backend & to   = backend_of(backend_dst);
    if (!on_own_device(from, src) || !on_own_device(to, dst)) {
        return false;
    }
    void *       to_data   = dst->data;
    const void * from_data = src->data;
    const size_t size      = ggml_nbytes(dst);
    from.stream->push([=] { memmove(to_data, from_data, size); });
    if (backend_src != backend_dst) {
        to.stream->wait_for(from.stream->mark());
    }
    return true;
}

const ggml_backend_i backend_interface = {
    /* .get_name           = */ get_name,
    /* .free               = */ free_backend,
    /* .set_tensor_async   = */ set_tensor_async,
    /* .get_tensor_async   = */ get_tensor_async,
    /* .cpy_tensor_async   = */ cpy_tensor_async,
    /* .synchronize        = */ synchronize,
    /* .graph_plan_create  = */ nullptr,
    /* .graph_plan_free    = */ nullptr,
    /* .graph_plan_update  = */ nullptr,
    /* .graph_plan_compute = */ nullptr,
    /* .graph_compute      = */ graph_compute,
    /* .event_record       = */ event_record,
    /* .event_wait         = */ event_wait,
    /* .graph_optimize     = */ nullptr,
    /* .graph_reserve      = */ graph_reserve,
    /* .buffer_size        = */ buffer_size,
    /* .reset              = */ reset,
};

ggml_guid guid = {0x66, 0x61, 0x6b, 0x65, 0x67, 0x70, 0x75, 0x20, 0x6f, 0x66, 0x20, 0x6b, 0x76, 0x74, 0x69, 0x65};

}  // namespace

ggml_backend_t new_backend(ggml_backend_dev_t device) {
    return new ggml_backend{&guid, backend_interface, device, new Backend{context_of(device), new_cpu_backend()}};
}

}  // namespace fakegpu
