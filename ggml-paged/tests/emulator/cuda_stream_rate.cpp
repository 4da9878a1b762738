// How close streaming comes to the link: prints the rate of plain copies from page-locked
// memory to the device, and that of ops of one query over K/V that is all on the host, by
// number of tokens. Nothing is asserted; needs a device.
//
//   cuda_stream_rate [tokens ...]      (default: 4096 8192 16384 32768 65536)
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "device_io.h"

namespace {

using namespace kvp_gpu;

constexpr uint32_t kv_heads = 8, group = 4, head = 128, page_cells = 2048, repeats = 10;

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool fail(const char * what) {
    std::fprintf(stderr, "cuda_stream_rate: %s: %s\n", what, kvp_last_error());
    return false;
}

// Bytes per second of copies of a page's size.
double copy_rate(gpu & g, size_t bytes) {
    void * host = g.pinned_alloc(bytes);
    void * device = g.pool_alloc(bytes);
    double best = 0;
    for (uint32_t i = 0; i < repeats && host && device; ++i) {
        const double begin = seconds();
        for (uint32_t j = 0; j < 8; ++j) {
            g.copy_in(stream_copy, device, host, bytes);
        }
        g.drain();
        best = std::max(best, 8.0 * double(bytes) / (seconds() - begin));
    }
    g.pool_free(device);
    g.pinned_free(host);
    return best;
}

// A pager with one layer, all of it in page-locked frames.
kvp_pager * make_pager(uint32_t tokens) {
    kvp_config config = {};
    config.page_cells = page_cells;
    config.ram_bytes = uint64_t(tokens / page_cells + 2) * page_cells * kv_heads * head * 4 + (1 << 20);
    config.arena_alloc = kvp_cuda_arena_alloc;
    config.arena_free = kvp_cuda_arena_free;
    const kvp_layer_desc layer = {0, tokens, kv_heads, head, head, KVP_F16, KVP_F16};
    kvp_pager * pager = nullptr;
    uint32_t number = 0;
    if (kvp_pager_create(&config, &pager) || kvp_layer_add(pager, &layer, &number) || kvp_pager_start(pager)) {
        kvp_pager_free(pager);
        return nullptr;
    }
    for (uint32_t page = 0; page < (tokens + page_cells - 1) / page_cells; ++page) {
        kvp_page p;
        if (kvp_pin(pager, 0, page, &p) == 0) {
            kvp_unpin(pager, 0, page, 1);
        }
    }
    return pager;
}

kvp_op * make_op(kvp_pager * pager, uint32_t tokens) {
    std::vector<int32_t> pos(tokens);
    for (uint32_t c = 0; c < tokens; ++c) {
        pos[c] = int32_t(c);
    }
    const std::vector<uint64_t> seqs(tokens, 1);
    const int32_t  q_pos = int32_t(tokens) - 1;
    const uint32_t q_seq = 0, q_cell = tokens - 1;
    kvp_batch_desc desc = {};
    desc.n_cells = tokens;
    desc.pos = pos.data();
    desc.seqs = seqs.data();
    desc.n_q = 1;
    desc.q_pos = &q_pos;
    desc.q_seq = &q_seq;
    desc.q_cell = &q_cell;
    desc.window = INT32_MAX;
    const kvp_params params = {0, kv_heads * group, 1.0f / std::sqrt(float(head)), 0.0f, 0.0f, 0};
    kvp_batch * batch = nullptr;
    kvp_op *    op = nullptr;
    return kvp_batch_begin(pager, &desc, &batch) || kvp_op_new(batch, &params, &op) ? nullptr : op;
}

bool measure(gpu & g, paged_gpu & paged, uint32_t tokens, double link) {
    const std::unique_ptr<kvp_pager, void (*)(kvp_pager *)> pager(make_pager(tokens), kvp_pager_free);
    if (!pager) {
        return fail("making the pager");
    }
    kvp_op * op = make_op(pager.get(), tokens);
    if (!op) {
        return fail("making the op");
    }
    std::vector<float> q(kv_heads * group * head, 0.1f), k(kv_heads * head, 0.1f), out(q.size());
    kvp_io io = {};
    io.q = {q.data(), int64_t(q.size() * 4), head * 4};
    io.k_new = io.v_new = {k.data(), int64_t(k.size() * 4), head * 4};
    io.out = out.data();
    double best = 1e9;
    for (uint32_t i = 0; i < repeats; ++i) {
        const double begin = seconds();
        if (forward_from_host(g, paged, op, io)) {
            const char * why = "";
            kvp_pager_error(pager.get(), &why);
            std::fprintf(stderr, "cuda_stream_rate: %s\n", why);
            return false;
        }
        best = std::min(best, seconds() - begin);
    }
    const double bytes = double(tokens) * kv_heads * head * 4;
    std::printf("%8u tokens  %8.2f ms  %7.2f GB/s  %5.1f %% of the link\n", tokens, best * 1e3, bytes / best / 1e9,
                100 * bytes / best / link);
    return true;
}

} // namespace

int main(int argc, char ** argv) {
    char message[256] = "";
    const auto g = make_cuda_gpu(0, message, sizeof message);
    if (!g) {
        std::fprintf(stderr, "cuda_stream_rate: %s\n", message);
        return 1;
    }
    const double link = copy_rate(*g, size_t(page_cells) * kv_heads * head * 4);
    std::printf("copies of a page  %7.2f GB/s\n", link / 1e9);
    const auto paged = paged_gpu::make(*g, kvp_cuda_config());
    std::vector<uint32_t> sizes = {4096, 8192, 16384, 32768, 65536};
    if (argc > 1) {
        sizes.clear();
    }
    for (int i = 1; i < argc; ++i) {
        sizes.push_back(uint32_t(std::atoi(argv[i])));
    }
    for (uint32_t tokens : sizes) {
        if (tokens == 0 || !paged || !measure(*g, *paged, tokens, link)) {
            return 1;
        }
    }
    return 0;
}
