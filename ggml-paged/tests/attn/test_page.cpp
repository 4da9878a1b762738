// kvp_cpu_page: parts of an op, merged, are the op.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "case.h"
#include "fixture.h"
#include "page_rig.h"
#include "reference.h"

namespace {

struct dims { uint32_t dk, dv; };

const std::vector<uint32_t> TOKENS = {0, 1, 63, 64, 65, 200, 513, 1100};
const std::vector<uint32_t> BATCH  = {1, 2, 3, 15, 16, 33, 40, 130, 600};
const std::vector<uint32_t> PAGE   = {16, 32, 64, 128, 256, 512, 1024, 2048};
const std::vector<dims>     DIMS   = {{32, 96}, {64, 64}, {80, 80}, {96, 96}, {128, 128}, {256, 256}, {512, 512}, {576, 512}};
const std::vector<uint32_t> GQA    = {1, 2, 3, 4, 5, 7, 8, 16};
const std::vector<int>      TYPES  = {KVP_F16, KVP_Q8_0, KVP_Q4_0};
const int MASKS = 6;
enum { P_TOKENS, P_BATCH, P_PAGE, P_DIMS, P_GQA, P_MASK, P_TYPE_K, P_TYPE_V, P_SOFTCAP, P_ALIBI, P_SINKS, P_THREADS };

// Multiplications and additions of a case at most, which keeps the sanitizers quick too.
constexpr double WORK_MAX = 3e8;

// row_allowed takes the smallest values for those that are not chosen yet.
bool row_allowed(const design_row & row) {
    const auto at = [&](int p) { return row[p] < 0 ? 0 : row[p]; };
    const dims d  = DIMS[at(P_DIMS)];
    const double work = 2.0 * BATCH[at(P_BATCH)] * (TOKENS[at(P_TOKENS)] + BATCH[at(P_BATCH)]) * GQA[at(P_GQA)] * (d.dk + d.dv);
    return work <= WORK_MAX && (d.dk % 32 == 0 || (row[P_TYPE_K] <= 0 && row[P_TYPE_V] <= 0));
}

test_case case_of(const design_row & row, uint64_t seed) {
    test_case c{};
    c.tokens     = TOKENS[row[P_TOKENS]];
    c.n_q        = BATCH[row[P_BATCH]];
    c.page_cells = PAGE[row[P_PAGE]];
    c.dk         = DIMS[row[P_DIMS]].dk;
    c.dv         = DIMS[row[P_DIMS]].dv;
    c.kv_heads   = 1 + seed % 2;
    c.heads      = GQA[row[P_GQA]] * c.kv_heads;
    c.mask       = (mask_kind) row[P_MASK];
    c.type_k     = TYPES[row[P_TYPE_K]];
    c.type_v     = TYPES[row[P_TYPE_V]];
    c.v_mean     = 0.4f;
    c.budget     = 2;
    c.softcap    = row[P_SOFTCAP];
    c.alibi      = row[P_ALIBI];
    c.sinks      = row[P_SINKS];
    c.threads    = 1 + 2 * row[P_THREADS];
    c.seed       = seed;
    return c;
}

// An op over stored rows, computed once in one piece.
struct computed_case {
    const test_case c;
    case_inputs     in;
    small_pager     pager;
    kvp_op *        op = nullptr;
    op_args         args;
    kvp_io          io{};

    explicit computed_case(const test_case & t)
        : c(t), in(in_group_zero(make_inputs(t))),
          pager(t.page_cells, (in.n_cells + t.page_cells - 1) / t.page_cells, {in.layer}),
          args(in.layer, t.heads, t.n_q, true) {
        std::vector<uint32_t> cells(in.n_cells);
        for (uint32_t i = 0; i < in.n_cells; i++) {
            cells[i] = i;
        }
        EXPECT_EQ(kvp_rows_write(pager.p, 0, cells.data(), in.n_cells, in.k.data(), in.v.data()), 0) << kvp_last_error();
        const kvp_batch_desc desc = in.batch_desc();
        kvp_batch * batch;
        EXPECT_EQ(kvp_batch_begin(pager.p, &desc, &batch), 0) << kvp_last_error();
        EXPECT_EQ(kvp_op_new(batch, &in.params, &op), 0) << kvp_last_error();
        args.q     = in.q;
        args.k_new = in.k_new;
        args.v_new = in.v_new;
        args.sinks = in.sinks;
        io         = args.io(in.layer, c.heads);
        EXPECT_EQ(forward(op, io, 2), 0) << kvp_last_error();
        EXPECT_EQ(kvp_rows_read(pager.p, 0, cells.data(), in.n_cells, in.k.data(), in.v.data()), 0) << kvp_last_error();
    }

    static case_inputs in_group_zero(case_inputs in) {
        in.layer.group = 0;
        return in;
    }

    // exact is a row in f64 over cells [begin, end).
    std::vector<double> exact(uint32_t row, uint32_t begin, uint32_t end, const float * sinks) const {
        const uint32_t query = row / c.heads, head = row % c.heads;
        const size_t   row_k = in.k.size() / in.n_cells, row_v = in.v.size() / in.n_cells;
        const reference_cells cells = {end - begin, &in.pos[begin], &in.seqs[begin], &in.k[begin * row_k], &in.v[begin * row_v]};
        const reference_query q     = {in.q_pos[query], in.q_seq[query], !in.q_except.empty() && in.q_except[query],
                                       &in.q[(size_t) query * c.heads * c.dk]};
        return reference_row(in.layer, in.params, in.batch_desc(), cells, q, head, sinks ? sinks + head : nullptr);
    }

    bool sees_any(uint32_t query, uint32_t page) const {
        const uint32_t end = std::min(in.n_cells, (page + 1) * c.page_cells);
        for (uint32_t cell = page * c.page_cells; cell < end; cell++) {
            if (kvp_visible(kvp_op_batch(op), query, cell)) {
                return true;
            }
        }
        return false;
    }
};

// expect_empty_rows looks at the rows that see nothing of the page.
void expect_empty_rows(const computed_case & k, uint32_t page, const kvp_partial & p) {
    for (uint32_t query = 0; query < k.c.n_q; query++) {
        if (k.sees_any(query, page)) {
            continue;
        }
        for (uint32_t row = query * k.c.heads; row < (query + 1) * k.c.heads; row++) {
            ASSERT_EQ(p.m[row], -INFINITY) << "row " << row << " of page " << page;
            ASSERT_EQ(p.l[row], 0.0f) << "row " << row << " of page " << page;
            for (uint32_t d = 0; d < k.c.dv; d++) {
                ASSERT_EQ(p.acc[(size_t) row * k.c.dv + d], 0.0f) << "row " << row << " of page " << page;
            }
        }
    }
}

void expect_exact(const computed_case & k, const std::vector<float> & out) {
    const uint32_t rows = k.c.n_q * k.c.heads;
    for (uint32_t row = 0; row < rows; row += std::max(1u, rows / 7)) {
        const std::vector<double> want = k.exact(row, 0, k.in.n_cells, k.io.sinks);
        for (uint32_t d = 0; d < k.c.dv; d++) {
            ASSERT_NEAR(out[(size_t) row * k.c.dv + d], want[d], 1e-4 * k.in.v_max) << "row " << row;
        }
    }
}

} // namespace

TEST(page, pages_merged_are_the_op) {
    const std::vector<int> values = {(int) TOKENS.size(), (int) BATCH.size(), (int) PAGE.size(), (int) DIMS.size(), (int) GQA.size(),
                                     MASKS, (int) TYPES.size(), (int) TYPES.size(), 2, 2, 2, 2};
    const std::vector<design_row> design = all_pairs(values, row_allowed, 1);
    ASSERT_EQ(missing_pairs(values, row_allowed, design), 0u);
    for (size_t i = 0; i < design.size(); i++) {
        const computed_case k(case_of(design[i], i));
        SCOPED_TRACE(k.c.name());
        std::vector<uint32_t> pages;
        const std::vector<page_partial> parts = attend_pages(k.op, k.io, k.c.threads, pages);
        for (size_t p = 0; p < pages.size(); p++) {
            expect_empty_rows(k, pages[p], parts[p].at);
        }
        const std::vector<float> out = merge_pages(parts, k.c.n_q * k.c.heads, k.c.dv, k.c.heads, k.io.sinks);
        for (size_t e = 0; e < out.size(); e++) {
            ASSERT_NEAR(out[e], k.args.out[e], 1e-6 * k.in.v_max) << "element " << e;
        }
        expect_exact(k, out);
        ASSERT_FALSE(HasFatalFailure());
    }
}

TEST(page, only_the_first_cells_count) {
    for (uint32_t n_q : {1u, 4u, 50u}) {
        test_case c{};
        c.tokens = 300, c.n_q = n_q, c.page_cells = 128, c.dk = c.dv = 64, c.heads = 6, c.kv_heads = 2;
        c.mask = MASK_SEQUENCES, c.type_k = c.type_v = KVP_F16, c.budget = 2, c.seed = n_q;
        const computed_case k(c);
        for (uint32_t cells : {0u, 1u, 63u, 64u, 65u, 127u, 128u}) {
            std::vector<page_partial> part;
            part.emplace_back(n_q * c.heads, c.dv);
            ASSERT_EQ(attend_page(k.op, k.io, 1, cells, part[0]), 0) << kvp_last_error();
            const std::vector<float> out = merge_pages(part, n_q * c.heads, c.dv, c.heads, nullptr);
            for (uint32_t row = 0; row < n_q * c.heads; row += 5) {
                const std::vector<double> want = k.exact(row, 128, 128 + cells, nullptr);
                for (uint32_t d = 0; d < c.dv; d++) {
                    ASSERT_NEAR(out[row * c.dv + d], want[d], 1e-5) << cells << " cells, row " << row;
                }
            }
        }
    }
}

// A page outside of the batch's list can be asked for, too.
TEST(page, a_page_that_nobody_sees_is_empty) {
    for (uint32_t n_q : {1u, 3u, 60u}) {
        test_case c{};
        c.tokens = 400, c.n_q = n_q, c.page_cells = 64, c.dk = c.dv = 64, c.heads = 4, c.kv_heads = 2;
        c.mask = MASK_WINDOW, c.type_k = c.type_v = KVP_F16, c.budget = 2, c.seed = 2;
        const computed_case k(c);
        ASSERT_EQ(kvp_batch_class(kvp_op_batch(k.op), 0, 0, n_q), KVP_EMPTY);
        page_partial part(n_q * c.heads, c.dv);
        ASSERT_EQ(attend_page(k.op, k.io, 0, 64, part), 0) << kvp_last_error();
        expect_empty_rows(k, 0, part.at);
    }
}

// Two sequences share pages; what one holds must not show in what the other sees.
TEST(page, infinities_of_one_slot_do_not_reach_another) {
    for (uint32_t n_q : {2u, 6u, 40u}) {
        const kvp_layer_desc layer = {0, 160, 2, 64, 64, KVP_F16, KVP_F16};
        std::vector<float> good;
        for (auto [odd_k, odd_v] : {std::pair<float, float>{0.1f, 0.1f}, {0.1f, INFINITY}, {INFINITY, 0.1f}, {NAN, NAN}, {-INFINITY, -INFINITY}}) {
            std::mt19937 random(7);
            small_pager  pager(32, 5, {layer});
            batch_args   a;
            for (uint32_t i = 0; i < 160; i++) {
                std::vector<float> k(128, odd_k), v(128, odd_v);
                for (uint32_t e = 0; e < 128 && i % 2 == 0; e++) {
                    k[e] = (int) (random() % 2001 - 1000) / 1000.0f;
                    v[e] = (int) (random() % 2001 - 1000) / 1000.0f;
                }
                pager.write(0, i, k, v);
                a.pos.push_back((int32_t) i / 2);
                a.seqs.push_back(i % 2 ? 2 : 1);
            }
            for (uint32_t i = 0; i < n_q; i++) {
                a.q_pos.push_back(160);
                a.q_seq.push_back(i % 2);
            }
            const kvp_batch_desc d = a.desc();
            const kvp_params     params = {0, 6, 0.3f, 0, 0, 0};
            kvp_batch * batch;
            kvp_op *    op;
            ASSERT_EQ(kvp_batch_begin(pager.p, &d, &batch), 0);
            ASSERT_EQ(kvp_op_new(batch, &params, &op), 0);
            op_args args(layer, 6, n_q, false);
            for (float & x : args.q) {
                x = (int) (random() % 2001 - 1000) / 1000.0f;
            }
            std::vector<uint32_t> pages;
            const auto out = merge_pages(attend_pages(op, args.io(layer, 6), 2, pages), n_q * 6, 64, 6, nullptr);
            good = good.empty() ? out : good;
            for (size_t i = 0; i < out.size(); i++) {
                if (i / (6 * 64) % 2 == 0) {
                    ASSERT_NEAR(out[i], good[i], 1e-6) << n_q << " queries, " << odd_k << " " << odd_v;
                }
            }
        }
    }
}

// Threads that go from op to op of other sizes, all at once: the same bits as alone.
TEST(page, threads_and_sizes_do_not_matter) {
    std::vector<std::unique_ptr<computed_case>>     ops;
    std::vector<std::vector<uint32_t>>              pages;
    std::vector<std::vector<page_partial>>          alone;
    for (uint32_t n_q : {1u, 200u, 5u, 33u, 7u}) {
        test_case c{};
        c.tokens = 150, c.n_q = n_q, c.page_cells = n_q == 33 ? 1024 : 32, c.dk = c.dv = n_q == 5 ? 256 : 64;
        c.heads = 4, c.kv_heads = 2, c.mask = MASK_CAUSAL, c.type_k = KVP_Q8_0, c.type_v = KVP_F16, c.budget = 2, c.seed = n_q;
        c.alibi = n_q == 7;
        ops.push_back(std::make_unique<computed_case>(c));
        pages.emplace_back();
        alone.push_back(attend_pages(ops.back()->op, ops.back()->io, 1, pages.back()));
    }
    std::vector<std::thread> team;
    std::atomic<uint32_t>    wrong{0};
    for (uint32_t t = 0; t < 4; t++) {
        team.emplace_back([&, t] {
            for (uint32_t i = 0; i < 10; i++) {
                const size_t o = (t + i) % ops.size(), p = (t * 3 + i) % pages[o].size();
                const computed_case & k = *ops[o];
                page_partial part(k.c.n_q * k.c.heads, k.c.dv);
                const int e = attend_page(k.op, k.io, pages[o][p], k.c.page_cells, part);
                const std::vector<float> & want = alone[o][p].block;
                wrong += e != 0 || std::memcmp(part.block.data(), want.data(), want.size() * sizeof(float)) != 0;
            }
        });
    }
    for (std::thread & t : team) {
        t.join();
    }
    EXPECT_EQ(wrong, 0u);
}

TEST(page, what_cannot_be_is_refused_and_nothing_sticks) {
    const kvp_layer_desc layer = {0, 64, 1, 32, 32, KVP_F16, KVP_F16};
    small_pager pager(16, 4, {layer});
    batch_args  a;
    a.first_cell = 16;
    a.pos.assign(20, 0);
    a.seqs.assign(20, 1);
    a.q_pos = {0};
    a.q_seq = {0};
    kvp_batch_desc   d = a.desc();
    const kvp_params params = {0, 1, 1.0f, 0, 0, 0};
    kvp_batch * batch;
    kvp_op *    op;
    kvp_op *    reserving;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &batch), 0);
    ASSERT_EQ(kvp_op_new(batch, &params, &op), 0);
    d.reserve = 1;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &batch), 0);
    ASSERT_EQ(kvp_op_new(batch, &params, &reserving), 0);
    d.reserve = 0;

    op_args      args(layer, 1, 1, false);
    const kvp_io io = args.io(layer, 1);
    page_partial out(1, 32);
    EXPECT_EQ(attend_page(op, io, 1, 16, out), 0);
    EXPECT_EQ(attend_page(op, io, 2, 4, out), 0);
    EXPECT_EQ(attend_page(op, io, 0, 16, out), -EINVAL);
    EXPECT_NE(std::string(kvp_last_error()).find("page 0"), std::string::npos) << kvp_last_error();
    EXPECT_EQ(attend_page(op, io, 3, 16, out), -EINVAL);
    EXPECT_EQ(attend_page(op, io, 1, 17, out), -EINVAL);
    EXPECT_NE(std::string(kvp_last_error()).find("17 cells"), std::string::npos) << kvp_last_error();
    EXPECT_EQ(attend_page(op, kvp_io{}, 1, 16, out), -EINVAL);
    EXPECT_EQ(attend_page(reserving, io, 1, 16, out), -EINVAL);
    for (uint32_t i = 0; i < KVP_BATCHES; i++) {
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &batch), 0);
    }
    EXPECT_EQ(attend_page(op, io, 1, 16, out), -ESTALE);
    EXPECT_EQ(kvp_pager_error(pager.p, nullptr), 0);
}

TEST(page, an_error_of_the_pager_is_told) {
    const kvp_layer_desc layer = {0, 16, 1, 32, 32, KVP_F16, KVP_F16};
    small_pager pager(16, 1, {layer});
    batch_args  a;
    a.pos.assign(16, 0);
    a.seqs.assign(16, 1);
    a.q_pos = {0};
    a.q_seq = {0};
    const kvp_batch_desc d = a.desc();
    const kvp_params     params = {0, 1, 1.0f, 0, 0, 0};
    kvp_batch * batch;
    kvp_op *    op;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &batch), 0);
    ASSERT_EQ(kvp_op_new(batch, &params, &op), 0);
    kvp_page data;
    ASSERT_EQ(kvp_pin(pager.p, 0, 0, &data), 0);
    const kvp_iface * iface = reinterpret_cast<kvp_op_head *>(op)->iface;
    iface->fail(pager.p, -EIO, "A disk is gone.");
    op_args      args(layer, 1, 1, false);
    const kvp_io io = args.io(layer, 1);
    page_partial out(1, 32);
    EXPECT_EQ(iface->cpu_page(nullptr, 0, op, &io, 0, 16, KVP_FULL, &data, out.at.m, out.at.l, out.at.acc), -EIO);
    EXPECT_STREQ(kvp_last_error(), "A disk is gone.");
    kvp_unpin(pager.p, 0, 0, 0);
}
