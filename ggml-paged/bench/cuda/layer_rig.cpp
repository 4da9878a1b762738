#include "layer_rig.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

#include "working_set.h"

namespace {

void must(int result) {
    if (result < 0) {
        throw std::runtime_error(kvp_last_error());
    }
}

void must(cudaError_t result, const char * what) {
    if (result != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
    }
}

} // namespace

device_pool::~device_pool() {
    for (const block & b : blocks_) {
        cudaFree(b.memory);
    }
}

void * device_pool::alloc(void * user, size_t bytes) {
    device_pool & p = *static_cast<device_pool *>(user);
    if (p.depth_ == p.blocks_.size()) {
        p.blocks_.push_back({nullptr, 0});
    }
    block & b = p.blocks_[p.depth_];
    if (b.bytes < bytes) {
        cudaFree(b.memory);
        b = {nullptr, 0};
        if (cudaMalloc(&b.memory, bytes) != cudaSuccess) {
            b.memory = nullptr;
            return nullptr;
        }
        b.bytes = bytes;
    }
    p.depth_++;
    return b.memory;
}

void device_pool::free(void * user, void *) {
    static_cast<device_pool *>(user)->depth_--;
}

kvp_cuda_pool device_pool::iface() {
    return {this, alloc, free};
}

cuda_context::cuda_context(uint32_t workers, bool keep) {
    kvp_cuda_config config = {};
    config.workers    = workers;
    config.vram_bytes = keep ? UINT64_MAX : 0;
    char message[256] = "";
    cuda = kvp_cuda_create(&config, message, sizeof message);
    if (!cuda) {
        throw std::runtime_error(message);
    }
    cudaStream_t made = nullptr;
    must(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream");
    stream = made;
}

cuda_context::~cuda_context() {
    cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    kvp_cuda_free(cuda);
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

layer_rig::layer_rig(const layer_shape & s) : shape_(s) {
    const uint64_t part = uint64_t(s.page_cells) * s.kv_heads * kvp_row_bytes(s.type, s.dim);
    const uint64_t frame = 2 * ((part + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN);
    kvp_config config = {};
    config.page_cells  = s.page_cells;
    int device = 0, l2_bytes = 0;
    must(cudaGetDevice(&device), "finding the device");
    must(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "asking for the size of the cache");
    l2_bytes_ = uint64_t(l2_bytes);
    const uint32_t layers = layers_for(l2_bytes_, uint64_t(s.kv_bytes()));
    config.ram_bytes   = frame * (uint64_t(pages()) * layers + 1);
    config.arena_alloc = kvp_cuda_arena_alloc;
    config.arena_free  = kvp_cuda_arena_free;
    const kvp_layer_desc layer = {0, s.tokens, s.kv_heads, s.dim, s.dim, s.type, s.type};
    must(kvp_pager_create(&config, &pager_));
    for (uint32_t i = 0, number = 0; i < layers; i++) {
        must(kvp_layer_add(pager_, &layer, &number));
    }
    must(kvp_pager_start(pager_));
    for (uint32_t i = 0; i < layers; i++) {
        fill_pages(i);
    }
    make_ops(layers);
    make_tensors();
}

layer_rig::~layer_rig() {
    cudaDeviceSynchronize();
    for (void * p : device_memory_) {
        cudaFree(p);
    }
    kvp_pager_free(pager_);
}

// One cell's rows serve all: values do not change the time, as long as no row is zero or
// out of range.
void layer_rig::fill_pages(uint32_t layer) {
    std::mt19937 random(1 + layer);
    std::normal_distribution<float> normal;
    std::vector<float> row(shape_.dim);
    const size_t cell_bytes = kvp_layer_row_k(pager_, layer), head_bytes = cell_bytes / shape_.kv_heads;
    constexpr size_t different = 61;
    std::vector<uint8_t> cells(different * cell_bytes);
    for (size_t i = 0; i < different * shape_.kv_heads; i++) {
        for (float & x : row) {
            x = normal(random);
        }
        kvp_quantize_row(shape_.type, row.data(), &cells[i * head_bytes], shape_.dim);
    }
    for (uint32_t page = 0; page < pages(); page++) {
        kvp_page p;
        must(kvp_pin(pager_, layer, page, &p));
        for (uint32_t c = 0; c < shape_.page_cells; c++) {
            std::memcpy(p.k + c * cell_bytes, &cells[(page + c) % different * cell_bytes], cell_bytes);
            std::memcpy(p.v + c * cell_bytes, &cells[(page + 7 * c) % different * cell_bytes], cell_bytes);
        }
        kvp_unpin(pager_, layer, page, 1);
    }
}

void layer_rig::make_ops(uint32_t layers) {
    std::vector<int32_t>  pos(shape_.tokens), q_pos(shape_.n_q);
    std::vector<uint64_t> seqs(shape_.tokens, 1);
    std::vector<uint32_t> q_seq(shape_.n_q, 0), q_cell(shape_.n_q);
    for (uint32_t c = 0; c < shape_.tokens; c++) {
        pos[c] = int32_t(c);
    }
    for (uint32_t i = 0; i < shape_.n_q; i++) {
        q_cell[i] = shape_.tokens - shape_.n_q + i;
        q_pos[i] = int32_t(q_cell[i]);
    }
    kvp_batch_desc desc = {};
    desc.n_cells = shape_.tokens;
    desc.pos     = pos.data();
    desc.seqs    = seqs.data();
    desc.n_q     = shape_.n_q;
    desc.q_pos   = q_pos.data();
    desc.q_seq   = q_seq.data();
    desc.q_cell  = q_cell.data();
    desc.window  = INT32_MAX;
    kvp_batch * batch = nullptr;
    must(kvp_batch_begin(pager_, &desc, &batch));
    for (uint32_t i = 0; i < layers; i++) {
        const kvp_params params = {i, shape_.heads, 1 / std::sqrt(float(shape_.dim)), 0, 0, 0};
        kvp_op * op = nullptr;
        must(kvp_op_new(batch, &params, &op));
        ops_.push_back(op);
    }
}

void * layer_rig::on_device(const void * host, size_t bytes) {
    void * p = nullptr;
    must(cudaMalloc(&p, bytes), "taking device memory");
    device_memory_.push_back(p);
    if (host) {
        must(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice), "copying to the device");
    }
    return p;
}

void layer_rig::make_tensors() {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float> & rows, uint32_t heads, kvp_f32 & host, kvp_f32 & device) {
        rows.resize(size_t(shape_.n_q) * heads * shape_.dim);
        for (float & x : rows) {
            x = normal(random);
        }
        host = {rows.data(), int64_t(heads * shape_.dim * sizeof(float)), int64_t(shape_.dim * sizeof(float))};
        device = host;
        device.data = static_cast<const float *>(on_device(rows.data(), rows.size() * sizeof(float)));
    };
    fill(q_, shape_.heads, host_.q, device_.q);
    fill(k_new_, shape_.kv_heads, host_.k_new, device_.k_new);
    fill(v_new_, shape_.kv_heads, host_.v_new, device_.v_new);
    device_.out = static_cast<float *>(on_device(nullptr, q_.size() * sizeof(float)));
}

double layer_rig::forward(cuda_context & cuda) {
    const kvp_cuda_pool pool = cuda.pool();
    const auto begin = std::chrono::steady_clock::now();
    for (kvp_op * op : ops_) {
        if (kvp_cuda_forward(cuda.cuda, op, &device_, cuda.stream, &pool)) {
            const char * why = "";
            kvp_pager_error(pager_, &why);
            throw std::runtime_error(why);
        }
        must(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)), "waiting for the op");
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / layers();
}

std::vector<float> layer_rig::result() const {
    std::vector<float> out(q_.size());
    must(cudaMemcpy(out.data(), device_.out, out.size() * sizeof(float), cudaMemcpyDeviceToHost), "fetching the result");
    return out;
}
