// Batches: visibility, classes and lists of pages, the ring, and refusals.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "fixture.h"
#include "reference.h"

namespace {

constexpr uint32_t PAGE = 16, CELLS = 16 * 20;

const kvp_layer_desc LAYER = {0, CELLS, 1, 32, 32, KVP_F16, KVP_F16};

// random_batch has pages of all kinds: full, with holes, unused, of several sequences, and
// a last page that is not whole.
batch_args random_batch(std::mt19937 & random) {
    batch_args a;
    a.first_cell = random() % 3 * PAGE;
    const uint32_t n = 1 + random() % (CELLS - a.first_cell);
    for (uint32_t i = 0; i < n; i += PAGE) {
        const int kind = random() % 4;
        for (uint32_t c = i; c < n && c < i + PAGE; c++) {
            const bool used = kind == 0 || (kind == 1 && random() % 2) || (kind == 2 && c % PAGE != 3);
            a.pos.push_back((int32_t) (random() % 10 ? c : random() % n) - 20);
            a.seqs.push_back(!used ? 0 : random() % 8 ? 6 : 1ull << random() % 64);
        }
    }
    const uint32_t n_q = 1 + random() % 40;
    for (uint32_t i = 0; i < n_q; i++) {
        a.q_pos.push_back((int32_t) (random() % (n + 30)) - 25);
        a.q_seq.push_back(random() % 6 ? 1 + random() % 2 : random() % 64);
        a.q_except.push_back(random() % 4 == 0);
    }
    a.window = random() % 2 ? INT32_MAX : (int32_t) (random() % 100);
    a.chunk  = random() % 2 ? 0 : 1 + (int32_t) (random() % 60);
    if (random() % 3 == 0) {
        a.q_except.clear();
    }
    return a;
}

void check_page(const kvp_batch * b, const batch_args & a, uint32_t page, uint32_t first, uint32_t n) {
    uint32_t seen = 0, described = 0;
    for (uint32_t i = first; i < first + n; i++) {
        for (uint32_t c = page * PAGE; c < (page + 1) * PAGE; c++) {
            seen += kvp_visible(b, i, c) != 0;
            described++;
        }
    }
    const kvp_class got = kvp_batch_class(b, page, first, n);
    if (got == KVP_EMPTY) {
        EXPECT_EQ(seen, 0u);
    }
    if (got == KVP_FULL) {
        EXPECT_EQ(seen, described);
    }
    // A page with one sequence and no holes has its class exactly.
    const kvp_page_stats & s = *kvp_batch_page(b, page);
    if (n == 1 && s.used == PAGE && s.seqs_and == s.seqs_or && (seen == 0 || seen == described)) {
        const bool inside = s.pos_max - s.pos_min < (int32_t) PAGE;
        EXPECT_TRUE(!inside || got == (seen ? KVP_FULL : KVP_EMPTY)) << a.q_pos[first];
    }
}

} // namespace

TEST(batch, classes_agree_with_every_cell) {
    for (uint32_t seed = 0; seed < 300; seed++) {
        SCOPED_TRACE(seed);
        std::mt19937 random(seed);
        small_pager pager(PAGE, 2, {LAYER});
        const batch_args a = random_batch(random);
        const kvp_batch_desc d = a.desc();
        kvp_batch * b;
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
        const uint32_t first_page = kvp_batch_first_page(b), pages = kvp_batch_pages(b);
        ASSERT_EQ(first_page, a.first_cell / PAGE);
        ASSERT_EQ(pages, (a.pos.size() + PAGE - 1) / PAGE);
        std::vector<uint32_t> seen_pages;
        for (uint32_t page = first_page; page < first_page + pages; page++) {
            for (int i = 0; i < 4; i++) {
                const uint32_t first = random() % d.n_q, n = 1 + random() % (d.n_q - first);
                check_page(b, a, page, first, i == 0 ? 1 : n);
            }
            bool any = false;
            for (uint32_t i = 0; i < d.n_q * PAGE; i++) {
                any = any || kvp_visible(b, i / PAGE, page * PAGE + i % PAGE);
            }
            if (any) {
                seen_pages.push_back(page);
            }
        }
        std::vector<uint32_t> list(pages);
        list.resize(kvp_batch_list(b, list.data()));
        EXPECT_EQ(list, seen_pages);
    }
}

TEST(batch, visible_is_the_definition) {
    for (uint32_t seed = 0; seed < 50; seed++) {
        std::mt19937 random(seed);
        small_pager pager(PAGE, 2, {LAYER});
        batch_args a = random_batch(random);
        // Positions at the ends of their range must not overflow.
        a.q_pos[0] = random() % 2 ? INT32_MAX : INT32_MIN;
        a.pos[0]   = random() % 2 ? INT32_MAX : INT32_MIN;
        const kvp_batch_desc d = a.desc();
        kvp_batch * b;
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
        for (uint32_t i = 0; i < d.n_q; i++) {
            const reference_query q = {a.q_pos[i], a.q_seq[i], d.q_except && a.q_except[i], nullptr};
            for (uint32_t c = 0; c < d.n_cells; c++) {
                ASSERT_EQ(kvp_visible(b, i, a.first_cell + c) != 0, reference_visible(d, q, a.pos[c], a.seqs[c])) << seed << " " << i << " " << c;
            }
            EXPECT_EQ(kvp_visible(b, i, a.first_cell + d.n_cells), 0);
            EXPECT_EQ(kvp_visible(b, i, a.first_cell - 1), 0);
        }
        EXPECT_EQ(kvp_visible(b, d.n_q, a.first_cell), 0);
    }
}

TEST(batch, keeps_its_own_copies) {
    small_pager pager(PAGE, 2, {LAYER});
    batch_args a;
    a.pos    = {0, 1, 2};
    a.seqs   = {1, 1, 1};
    a.q_pos  = {1};
    a.q_seq  = {0};
    a.q_cell = {1};
    const kvp_batch_desc d = a.desc();
    kvp_batch * b;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    a.pos = {9, 9, 9};
    a.q_pos[0] = 0;
    EXPECT_EQ(kvp_visible(b, 0, 1), 1);
    EXPECT_EQ(kvp_visible(b, 0, 2), 0);
    EXPECT_EQ(kvp_batch_get(b)->pos[1], 1);
    EXPECT_EQ(kvp_batch_get(b)->q_cell[0], 1u);
}

TEST(batch, exceptions_make_one_batch_each) {
    small_pager pager(PAGE, 2, {LAYER});
    batch_args a;
    a.pos   = {0, 1, 2};
    a.seqs  = {1, 1, 1};
    a.q_pos = {0, 1};
    a.q_seq = {0, 0};
    const kvp_batch_desc d = a.desc();
    kvp_batch *b, *one, *again, *other;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    uint8_t except[2] = {1, 0};
    ASSERT_EQ(kvp_batch_except(b, except, &one), 0);
    ASSERT_EQ(kvp_batch_except(b, except, &again), 0);
    EXPECT_EQ(one, again);
    except[1] = 1;
    ASSERT_EQ(kvp_batch_except(b, except, &other), 0);
    EXPECT_NE(one, other);
    EXPECT_EQ(kvp_visible(b, 0, 2), 0);
    EXPECT_EQ(kvp_visible(one, 0, 2), 1);
    EXPECT_EQ(kvp_visible(one, 1, 2), 0);
    EXPECT_EQ(kvp_visible(other, 1, 2), 1);
}

TEST(batch, old_ones_are_stale) {
    small_pager pager(PAGE, 2, {LAYER});
    batch_args a;
    a.pos   = {0};
    a.seqs  = {1};
    a.q_pos = {0};
    a.q_seq = {0};
    const kvp_batch_desc d = a.desc();
    const kvp_params params = {0, 2, 1.0f, 0, 0, 0};
    const uint8_t    except = 1;
    kvp_batch *b, *derived, *unused;
    kvp_op *op, *derived_op;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    ASSERT_EQ(kvp_batch_except(b, &except, &derived), 0);
    ASSERT_EQ(kvp_op_new(b, &params, &op), 0);
    ASSERT_EQ(kvp_op_new(derived, &params, &derived_op), 0);
    op_args args(LAYER, 2, 1, false);
    for (uint32_t i = 1; i < KVP_BATCHES; i++) {
        ASSERT_EQ(kvp_batch_begin(pager.p, &d, &unused), 0);
    }
    EXPECT_EQ(forward(op, args.io(LAYER, 2), 2), 0) << "the last KVP_BATCHES are kept";
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &unused), 0);
    EXPECT_EQ(kvp_batch_get(b), nullptr);
    EXPECT_EQ(kvp_batch_class(b, 0, 0, 1), KVP_EMPTY);
    EXPECT_EQ(kvp_op_new(b, &params, &op), -ESTALE);
    EXPECT_EQ(kvp_batch_except(b, &except, &unused), -ESTALE);
    std::fill(args.out.begin(), args.out.end(), -7.0f);
    EXPECT_EQ(forward(derived_op, args.io(LAYER, 2), 3), -ESTALE);
    EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
    EXPECT_EQ(kvp_pager_error(pager.p, nullptr), -ESTALE) << "nobody looks at the result of an op in a graph";
}

TEST(batch, a_reserving_one_has_sizes_only) {
    small_pager pager(PAGE, 2, {LAYER});
    kvp_batch_desc d{};
    d.n_cells = CELLS;
    d.n_q     = 512;
    d.window  = INT32_MAX;
    d.reserve = 1;
    kvp_batch * b;
    kvp_op *    op;
    const kvp_params params = {0, 4, 1.0f, 0, 0, 0};
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0) << kvp_last_error();
    ASSERT_EQ(kvp_op_new(b, &params, &op), 0);
    EXPECT_GT(kvp_cpu_work_bytes(op, 2), 512u * 4 * 32 * sizeof(float));
    op_args args(LAYER, 4, 512, false);
    EXPECT_EQ(forward(op, args.io(LAYER, 4), 2), -EINVAL);
    EXPECT_EQ(args.out, std::vector<float>(args.out.size(), 0.0f));
}

namespace {

// refused checks that a changed description gives -EINVAL and a sentence with a word in it.
template <typename F> void refused(const char * word, F change) {
    small_pager pager(PAGE, 2, {LAYER});
    batch_args a;
    a.pos    = {0, 1};
    a.seqs   = {1, 1};
    a.q_pos  = {1};
    a.q_seq  = {0};
    a.q_cell = {1};
    kvp_batch_desc d = a.desc();
    change(a, d);
    kvp_batch * b = nullptr;
    EXPECT_EQ(kvp_batch_begin(pager.p, &d, &b), -EINVAL) << word;
    EXPECT_EQ(b, nullptr);
    EXPECT_NE(std::strstr(kvp_last_error(), word), nullptr) << kvp_last_error();
}

} // namespace

TEST(batch, refuses_what_cannot_be) {
    refused("queries", [](batch_args &, kvp_batch_desc & d) { d.n_q = 0; });
    refused("window", [](batch_args &, kvp_batch_desc & d) { d.window = -1; });
    refused("chunk", [](batch_args &, kvp_batch_desc & d) { d.chunk = -5; });
    refused("group", [](batch_args &, kvp_batch_desc & d) { d.group = 1; });
    refused("group", [](batch_args &, kvp_batch_desc & d) { d.group = 4000000000u; });
    refused("page", [](batch_args &, kvp_batch_desc & d) { d.first_cell = 8; });
    refused("cells", [](batch_args &, kvp_batch_desc & d) { d.first_cell = CELLS; });
    refused("cells", [](batch_args &, kvp_batch_desc & d) { d.n_cells = UINT32_MAX; });
    refused("sequence", [](batch_args & a, kvp_batch_desc &) { a.q_seq[0] = 64; });
    refused("cell", [](batch_args & a, kvp_batch_desc &) { a.q_cell[0] = CELLS; });
    refused("positions", [](batch_args &, kvp_batch_desc & d) { d.q_pos = nullptr; });
    refused("positions", [](batch_args &, kvp_batch_desc & d) { d.seqs = nullptr; });
}

// kvp_op_new makes an op exactly if kvp_supported accepts the layer, for every shape.
TEST(batch, an_op_is_made_exactly_of_what_is_supported) {
    std::vector<kvp_layer_desc> layers;
    for (uint32_t dk : {16u, 24u, 32u, 40u, 64u, 72u, 80u, 128u, 192u, 576u}) {
        for (uint32_t dv : {16u, 20u, 64u, 128u, 512u}) {
            layers.push_back({0, CELLS, 2, dk, dv, KVP_F16, KVP_F16});
        }
    }
    layers.push_back({0, CELLS, 2, 64, 96, KVP_Q8_0, KVP_Q4_0});
    small_pager pager(PAGE, 2, layers);
    batch_args a;
    a.pos   = {0};
    a.seqs  = {1};
    a.q_pos = {0};
    a.q_seq = {0};
    const kvp_batch_desc d = a.desc();
    kvp_batch * b;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    int made = 0, refused = 0;
    for (uint32_t i = 0; i < layers.size(); i++) {
        for (uint32_t heads : {0u, 1u, 2u, 3u, 8u}) {
            const kvp_params params = {i, heads, 1, 0, 0, 0};
            kvp_op * op;
            const int supported = kvp_supported(&layers[i], heads);
            EXPECT_EQ(kvp_op_new(b, &params, &op), supported) << layers[i].dk << "/" << layers[i].dv << ", " << heads << " heads";
            const bool multiples = layers[i].dk % 16 == 0 && layers[i].dv % 16 == 0 && heads != 0 && heads % 2 == 0;
            EXPECT_EQ(supported == 0, multiples) << layers[i].dk << "/" << layers[i].dv << ", " << heads << " heads";
            supported == 0 ? made++ : refused++;
        }
    }
    EXPECT_GT(made, 20);
    EXPECT_GT(refused, 20);
    kvp_layer_desc f32 = LAYER;
    f32.type_v = 0;
    EXPECT_EQ(kvp_supported(&f32, 2), -EINVAL);
    EXPECT_NE(std::strstr(kvp_last_error(), "f16, q8_0 and q4_0"), nullptr) << kvp_last_error();
}

TEST(batch, ops_refuse_shapes_that_cannot_be) {
    kvp_layer_desc other = LAYER, bad_dim = LAYER;
    other.group = 1;
    bad_dim.dk = 40;
    small_pager pager(PAGE, 2, {LAYER, other, bad_dim});
    batch_args a;
    a.pos   = {0};
    a.seqs  = {1};
    a.q_pos = {0};
    a.q_seq = {0};
    const kvp_batch_desc d = a.desc();
    kvp_batch * b;
    kvp_op *    op;
    ASSERT_EQ(kvp_batch_begin(pager.p, &d, &b), 0);
    const kvp_params wrong[] = {
        {3, 2, 1, 0, 0, 0}, {1, 2, 1, 0, 0, 0}, {2, 2, 1, 0, 0, 0}, {0, 0, 1, 0, 0, 0},
        {0, 2, NAN, 0, 0, 0}, {0, 2, 1, -1, 0, 0}, {0, 2, 1, 0, INFINITY, 0},
    };
    for (const kvp_params & params : wrong) {
        EXPECT_EQ(kvp_op_new(b, &params, &op), -EINVAL) << params.layer;
        EXPECT_GT(std::strlen(kvp_last_error()), 20u);
    }
    const kvp_params right = {0, 7, 1, 0, 0, 0};
    ASSERT_EQ(kvp_op_new(b, &right, &op), 0);
    const kvp_iface * iface = reinterpret_cast<kvp_op_head *>(op)->iface;
    EXPECT_EQ(iface->version, KVP_IFACE_VERSION);
    EXPECT_EQ(iface->size, sizeof(kvp_iface));
    EXPECT_EQ(iface->params(op)->heads, 7u);
    EXPECT_EQ(iface->batch(op), b);
    EXPECT_EQ(iface->pager(op), pager.p);
}
