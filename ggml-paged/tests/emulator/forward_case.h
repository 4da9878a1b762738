// An op over a real pager, from its first rows to its exact answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device_io.h"
#include "emulator/gpu.h"

struct forward_shape {
    uint32_t dk = 64, dv = 64, kv_heads = 2, group = 2;
    int      type_k = KVP_F16, type_v = KVP_F16;
    uint32_t page_cells = 16, history = 100, n_q = 3;
    uint32_t frames = 4;
    uint32_t slots = 2, workers = 0;
    uint32_t hot = 0;        // this many pages have room in device memory
    bool     new_rows = true;
    bool     sinks = false;
    int32_t  window = INT32_MAX;
    float    max_bias = 0;
    uint32_t seqs = 1;
    uint64_t seed = 1;
};

class forward_case {
public:
    explicit forward_case(const forward_shape & shape);
    ~forward_case();

    // A batch of n_q new cells after the ones there are; their rows come with it.
    void begin_batch(bool reserve = false);

    // run computes the batch's op; out then holds the result.
    int run(kvp_gpu::gpu & g, kvp_gpu::paged_gpu & paged);

    // worst is the largest error of out against f64 over the stored rows, in units of max|V|.
    double worst() const;

    kvp_cuda_config config();
    bool all_zero() const;

    forward_shape        shape;
    kvp_pager *          pager = nullptr;
    kvp_batch *          batch = nullptr;
    kvp_op *             op = nullptr;
    std::vector<float>   out;
    uint64_t             cpu_pages = 0;  // attended by workers

private:
    std::vector<float> random_rows(uint32_t n, uint32_t elements, float mean);
    void add_cells(uint32_t n);
    void read_rows(std::vector<float> * k, std::vector<float> * v) const;

    uint64_t              state_;
    uint32_t              used_ = 0;
    std::vector<int32_t>  pos_;
    std::vector<uint64_t> seqs_;
    std::vector<int32_t>  q_pos_;
    std::vector<uint32_t> q_seq_, q_cell_;
    std::vector<float>    q_, k_new_, v_new_, sinks_;
};
