// cpu_pages::attend of every page, merged, beside kvp_cpu_forward of the same op.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "cpu_page.h"
#include "hybrid/hybrid.h"

namespace {

struct shape {
    uint32_t tokens, page_cells, heads, kv_heads, dim;
    int      type;
    int32_t  window;
    float    softcap;
};

constexpr double ERROR_MAX = 2e-5;

void must(int result, const char * what) {
    if (result < 0) {
        std::fprintf(stderr, "test_cpu_page: %s: %s\n", what, kvp_last_error());
        std::exit(1);
    }
}

kvp_pager * make_pager(const shape & s) {
    kvp_config config = {};
    config.page_cells = s.page_cells;
    config.ram_bytes = 64 << 20;
    const kvp_layer_desc layer = {0, s.tokens, s.kv_heads, s.dim, s.dim, s.type, s.type};
    kvp_pager * pager = nullptr;
    uint32_t number;
    must(kvp_pager_create(&config, &pager), "making a pager");
    must(kvp_layer_add(pager, &layer, &number), "adding a layer");
    must(kvp_pager_start(pager), "starting the pager");
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float>    row(s.dim);
    std::vector<uint8_t>  k(kvp_layer_row_k(pager, 0)), v(k.size());
    for (uint32_t cell = 0; cell < s.tokens; cell++) {
        for (auto * rows : {&k, &v}) {
            for (uint32_t h = 0; h < s.kv_heads; h++) {
                std::generate(row.begin(), row.end(), [&] { return normal(random); });
                kvp_quantize_row(s.type, row.data(), rows->data() + h * kvp_row_bytes(s.type, s.dim), s.dim);
            }
        }
        must(kvp_rows_write(pager, 0, &cell, 1, k.data(), v.data()), "writing rows");
    }
    return pager;
}

kvp_op * make_op(kvp_pager * pager, const shape & s) {
    std::vector<int32_t>  pos(s.tokens);
    std::vector<uint64_t> seqs(s.tokens, 1);
    for (uint32_t c = 0; c < s.tokens; c++) {
        pos[c] = int32_t(c);
        seqs[c] = c % 11 == 3 ? 0 : c % 7 == 2 ? 2 : 1;  // unused, of another sequence, ours
    }
    const int32_t  q_pos = int32_t(s.tokens) - 1;
    const uint32_t q_seq = 0, q_cell = s.tokens - 1;
    kvp_batch_desc desc = {0, 0, s.tokens, pos.data(), seqs.data(), 1, &q_pos, &q_seq, nullptr, &q_cell, s.window, 0, 0};
    const kvp_params params = {0, s.heads, 1 / std::sqrt(float(s.dim)), s.softcap, 0};
    kvp_batch * batch = nullptr;
    kvp_op *    op = nullptr;
    must(kvp_batch_begin(pager, &desc, &batch), "beginning a batch");
    must(kvp_op_new(batch, &params, &op), "making an op");
    return op;
}

std::vector<float> by_pages(kvp_pager * pager, kvp_op * op, const kvp_io & io, const shape & s) {
    std::vector<float> total(kvp::partial_floats(s.heads, s.dim)), part(total.size());
    const kvp_partial sum = kvp::partial_at(total.data(), s.heads, s.dim), one = kvp::partial_at(part.data(), s.heads, s.dim);
    kvp::partial_clear(sum);
    cpu_pages pages(1);
    std::vector<uint32_t> list(kvp_batch_pages(kvp_op_batch(op)));
    list.resize(kvp_batch_list(kvp_op_batch(op), list.data()));
    for (uint32_t page : list) {
        kvp_page data;
        must(kvp_pin(pager, 0, page, &data), "pinning a page");
        const uint32_t cells = std::min(s.page_cells, s.tokens - page * s.page_cells);
        must(cpu_pages::attend(&pages, 0, op, &io, page, cells, KVP_MIXED, &data, one.m, one.l, one.acc), "attending a page");
        kvp_unpin(pager, 0, page, 0);
        kvp::partial_merge(sum, one);
    }
    std::vector<float> out(size_t(s.heads) * s.dim);
    for (size_t i = 0; i < out.size(); i++) {
        out[i] = sum.acc[i] / sum.l[i / s.dim];
    }
    return out;
}

bool compare(const shape & s) {
    kvp_pager * pager = make_pager(s);
    kvp_op *    op = make_op(pager, s);
    std::vector<float> q(size_t(s.heads) * s.dim), want(q.size());
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::generate(q.begin(), q.end(), [&] { return normal(random); });
    kvp_io io = {};
    io.q = {q.data(), int64_t(q.size() * sizeof(float)), int64_t(s.dim * sizeof(float))};
    io.out = want.data();
    std::vector<char> work(kvp_cpu_work_bytes(op, 1));
    must(kvp_cpu_forward(op, &io, 0, 1, work.data(), work.size()), "computing on the CPU");
    const std::vector<float> got = by_pages(pager, op, io, s);
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double error = std::fabs(got[i] - want[i]);
        worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
    }
    kvp_pager_free(pager);
    std::printf("%u tokens, pages of %u, %u/%u heads of %u, %s: %.1e\n", s.tokens, s.page_cells, s.heads, s.kv_heads, s.dim,
                kvp_type_name(s.type), worst);
    return worst <= ERROR_MAX;
}

} // namespace

int main() {
    const shape shapes[] = {
        {1000, 256, 40, 8, 128, KVP_F16,  INT32_MAX, 0},
        {777,  64,  8,  8, 64,  KVP_Q8_0, INT32_MAX, 0},
        {500,  128, 8,  1, 128, KVP_Q4_0, 300,       0},
        {65,   16,  4,  2, 96,  KVP_F16,  40,        5},
    };
    bool good = true;
    for (const shape & s : shapes) {
        good = compare(s) && good;
    }
    return good ? 0 : 1;
}
