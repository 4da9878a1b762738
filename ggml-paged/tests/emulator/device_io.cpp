#include "device_io.h"

#include <errno.h>

#include <vector>

namespace {

using namespace kvp_gpu;

// Device copies of tensors, given back in the reverse order.
class device_tensors {
public:
    explicit device_tensors(gpu & g) : gpu_(g) {}
    ~device_tensors() {
        while (!taken_.empty()) {
            gpu_.pool_free(taken_.back());
            taken_.pop_back();
        }
    }

    // A tensor of n tokens with some heads; the bytes between are copied too.
    kvp_f32 upload(const kvp_f32 & host, uint32_t n, uint32_t heads, uint32_t elements) {
        kvp_f32 x = host;
        if (host.data) {
            const size_t bytes = size_t(n - 1) * size_t(host.row_stride) + size_t(heads - 1) * size_t(host.head_stride) + elements * sizeof(float);
            x.data = static_cast<const float *>(fill(host.data, bytes));
        }
        return x;
    }

    void * fill(const void * host, size_t bytes) {
        void * p = take(bytes);
        error_ = p && !gpu_.copy_in(stream_compute, p, host, bytes) ? error_ : -EIO;
        return p;
    }

    void * take(size_t bytes) {
        void * p = gpu_.pool_alloc(bytes);
        if (p) {
            taken_.push_back(p);
        } else {
            error_ = -ENOMEM;
        }
        return p;
    }

    int error() const { return error_; }

private:
    gpu &               gpu_;
    std::vector<void *> taken_;
    int                 error_ = 0;
};

} // namespace

int forward_from_host(gpu & g, paged_gpu & paged, kvp_op * op, const kvp_io & io) {
    op_view view;
    std::string why;
    const int refused = read_op(op, &view, &why);
    if (refused) {
        return paged.forward(op, io);  // which says so to the pager
    }
    if (view.desc->n_q == 0 || view.desc->reserve) {
        return paged.forward(op, io);
    }
    device_tensors device(g);
    const size_t out_bytes = size_t(view.rows) * view.layer->dv * sizeof(float);
    kvp_io on_device;
    on_device.q = device.upload(io.q, view.desc->n_q, view.params->heads, view.layer->dk);
    on_device.k_new = device.upload(io.k_new, view.desc->n_q, view.layer->kv_heads, view.layer->dk);
    on_device.v_new = device.upload(io.v_new, view.desc->n_q, view.layer->kv_heads, view.layer->dv);
    on_device.sinks = io.sinks ? static_cast<const float *>(device.fill(io.sinks, view.params->heads * sizeof(float))) : nullptr;
    on_device.out = static_cast<float *>(device.take(out_bytes));
    if (int e = device.error()) {
        g.drain();
        return e;
    }
    const int e = paged.forward(op, on_device);
    const int copied = g.copy_out(stream_compute, io.out, on_device.out, out_bytes);
    const int drained = g.drain();
    return e ? e : copied ? copied : drained;
}
