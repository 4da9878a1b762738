#include "forward_case.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "cuda/metadata.h"

namespace {

constexpr uint32_t capacity = 4096;

std::mutex cpu_pages_mutex;

// What the engine's CPU kernels would do for a page, slowly: m, l and acc per row.
int attend_page(void * user, uint32_t, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells, kvp_class,
                const kvp_page * data, float * m, float * l, float * acc) {
    forward_case & c = *static_cast<forward_case *>(user);
    {
        std::lock_guard<std::mutex> lock(cpu_pages_mutex);
        ++c.cpu_pages;
    }
    const kvp_params & params = *kvp_op_params(op);
    const kvp_batch *  batch = kvp_op_batch(op);
    const uint32_t n_q = kvp_batch_get(batch)->n_q, heads = params.heads, dk = c.shape.dk, dv = c.shape.dv;
    const size_t row_k = kvp_row_bytes(c.shape.type_k, dk), row_v = kvp_row_bytes(c.shape.type_v, dv);
    std::vector<float> k(dk), v(dv);
    for (uint32_t row = 0; row < n_q * heads; ++row) {
        const uint32_t i = row / heads, h = row % heads;
        const char * base = reinterpret_cast<const char *>(io->q.data) + i * io->q.row_stride + h * io->q.head_stride;
        const float * q = reinterpret_cast<const float *>(base);
        m[row] = -std::numeric_limits<float>::infinity();
        l[row] = 0;
        std::fill(acc + size_t(row) * dv, acc + size_t(row + 1) * dv, 0.0f);
        for (uint32_t cell = 0; cell < cells; ++cell) {
            if (!kvp_visible(batch, i, page * c.shape.page_cells + cell)) {
                continue;
            }
            const size_t at = size_t(cell) * c.shape.kv_heads + h / c.shape.group;
            kvp_dequantize_row(c.shape.type_k, data->k + at * row_k, k.data(), dk);
            kvp_dequantize_row(c.shape.type_v, data->v + at * row_v, v.data(), dv);
            float s = 0;
            for (uint32_t d = 0; d < dk; ++d) {
                s += q[d] * k[d];
            }
            s *= params.scale;
            const float m_max = std::max(m[row], s), correction = std::exp(m[row] - m_max), w = std::exp(s - m_max);
            m[row] = m_max;
            l[row] = l[row] * correction + w;
            for (uint32_t d = 0; d < dv; ++d) {
                acc[size_t(row) * dv + d] = acc[size_t(row) * dv + d] * correction + w * v[d];
            }
        }
    }
    return 0;
}

} // namespace

forward_case::forward_case(const forward_shape & s) : shape(s), state_(s.seed) {
    kvp_layer_desc layer = {0, capacity, s.kv_heads, s.dk, s.dv, s.type_k, s.type_v};
    const size_t row_k = s.kv_heads * kvp_row_bytes(s.type_k, s.dk), row_v = s.kv_heads * kvp_row_bytes(s.type_v, s.dv);
    const size_t k_bytes = (s.page_cells * row_k + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
    const size_t page = (k_bytes + s.page_cells * row_v + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
    kvp_config config = {};
    config.page_cells = s.page_cells;
    config.ram_bytes = page * s.frames;
    config.spill_dir = SPILL_DIR;
    config.io_threads = 1;
    uint32_t number = 0;
    const bool made = kvp_pager_create(&config, &pager) == 0 && kvp_layer_add(pager, &layer, &number) == 0 && kvp_pager_start(pager) == 0;
    if (!made) {
        ADD_FAILURE() << kvp_last_error();
        return;
    }
    add_cells(s.history);
    const std::vector<float> k = random_rows(s.history * s.kv_heads, s.dk, 0), v = random_rows(s.history * s.kv_heads, s.dv, 0.4f);
    std::vector<uint8_t> kb(s.history * row_k), vb(s.history * row_v);
    for (uint32_t i = 0; i < s.history * s.kv_heads; ++i) {
        kvp_quantize_row(s.type_k, &k[size_t(i) * s.dk], &kb[i * row_k / s.kv_heads], s.dk);
        kvp_quantize_row(s.type_v, &v[size_t(i) * s.dv], &vb[i * row_v / s.kv_heads], s.dv);
    }
    std::vector<uint32_t> cells(s.history);
    for (uint32_t c = 0; c < s.history; ++c) {
        cells[c] = c;
    }
    EXPECT_EQ(kvp_rows_write(pager, 0, cells.data(), s.history, kb.data(), vb.data()), 0) << kvp_last_error();
}

forward_case::~forward_case() {
    kvp_pager_free(pager);
}

std::vector<float> forward_case::random_rows(uint32_t n, uint32_t elements, float mean) {
    std::mt19937_64 random(++state_);
    std::normal_distribution<float> normal(mean, 1.0f);
    std::vector<float> x(size_t(n) * elements);
    for (float & f : x) {
        f = normal(random);
    }
    return x;
}

void forward_case::add_cells(uint32_t n) {
    std::mt19937_64 random(++state_);
    for (uint32_t i = 0; i < n; ++i, ++used_) {
        pos_.push_back(int32_t(used_));
        seqs_.push_back(random() % 9 == 0 ? 0 : 1ull << random() % shape.seqs);
    }
}

void forward_case::begin_batch(bool reserve) {
    const forward_shape & s = shape;
    q_pos_.clear();
    q_seq_.clear();
    q_cell_.clear();
    for (uint32_t i = 0; i < s.n_q; ++i) {
        q_seq_.push_back(i % s.seqs);
        q_pos_.push_back(int32_t(used_));
        q_cell_.push_back(used_);
        add_cells(1);
        seqs_.back() = 1ull << q_seq_.back();
    }
    kvp_batch_desc desc = {};
    desc.n_cells = used_;
    desc.pos = pos_.data();
    desc.seqs = seqs_.data();
    desc.n_q = s.n_q;
    desc.q_pos = q_pos_.data();
    desc.q_seq = q_seq_.data();
    desc.q_cell = q_cell_.data();
    desc.window = s.window;
    desc.reserve = reserve;
    ASSERT_EQ(kvp_batch_begin(pager, &desc, &batch), 0) << kvp_last_error();
    const kvp_params params = {0, s.kv_heads * s.group, 1.0f / std::sqrt(float(s.dk)), 0.0f, s.max_bias, 0};
    ASSERT_EQ(kvp_op_new(batch, &params, &op), 0) << kvp_last_error();
    q_ = random_rows(s.n_q * params.heads, s.dk, 0);
    k_new_ = random_rows(s.n_q * s.kv_heads, s.dk, 0);
    v_new_ = random_rows(s.n_q * s.kv_heads, s.dv, 0.4f);
    sinks_ = random_rows(1, params.heads, 0);
    out.assign(size_t(s.n_q) * params.heads * s.dv, std::nanf(""));
}

int forward_case::run(kvp_gpu::gpu & g, kvp_gpu::paged_gpu & paged) {
    const forward_shape & s = shape;
    const auto rows = [](const std::vector<float> & x, uint32_t heads, uint32_t elements) {
        return kvp_f32{x.data(), int64_t(heads * elements * sizeof(float)), int64_t(elements * sizeof(float))};
    };
    kvp_io io = {};
    io.q = rows(q_, s.kv_heads * s.group, s.dk);
    if (s.new_rows) {
        io.k_new = rows(k_new_, s.kv_heads, s.dk);
        io.v_new = rows(v_new_, s.kv_heads, s.dv);
    }
    io.sinks = s.sinks ? sinks_.data() : nullptr;
    io.out = out.data();
    return forward_from_host(g, paged, op, io);
}

void forward_case::read_rows(std::vector<float> * k, std::vector<float> * v) const {
    const forward_shape & s = shape;
    const size_t row_k = kvp_row_bytes(s.type_k, s.dk), row_v = kvp_row_bytes(s.type_v, s.dv);
    std::vector<uint8_t> kb(used_ * s.kv_heads * row_k), vb(used_ * s.kv_heads * row_v);
    std::vector<uint32_t> cells(used_);
    for (uint32_t c = 0; c < used_; ++c) {
        cells[c] = c;
    }
    EXPECT_EQ(kvp_rows_read(pager, 0, cells.data(), used_, kb.data(), vb.data()), 0) << kvp_last_error();
    k->resize(size_t(used_) * s.kv_heads * s.dk);
    v->resize(size_t(used_) * s.kv_heads * s.dv);
    for (uint32_t i = 0; i < used_ * s.kv_heads; ++i) {
        kvp_dequantize_row(s.type_k, &kb[i * row_k], &(*k)[size_t(i) * s.dk], s.dk);
        kvp_dequantize_row(s.type_v, &vb[i * row_v], &(*v)[size_t(i) * s.dv], s.dv);
    }
}

double forward_case::worst() const {
    const forward_shape & s = shape;
    std::vector<float> k, v;
    read_rows(&k, &v);
    float v_max = 0;
    for (float x : v) {
        v_max = std::max(v_max, std::fabs(x));
    }
    const uint32_t heads = s.kv_heads * s.group;
    double top_error = 0;
    for (uint32_t i = 0; i < s.n_q; ++i) {
        for (uint32_t h = 0; h < heads; ++h) {
            const float * q = &q_[(size_t(i) * heads + h) * s.dk];
            std::vector<double> acc(s.dv, 0.0);
            double sum = s.sinks ? std::exp(double(sinks_[h])) : 0;
            for (uint32_t c = 0; c < used_; ++c) {
                if (!kvp_visible(batch, i, c)) {
                    continue;
                }
                const size_t row = size_t(c) * s.kv_heads + h / s.group;
                double x = 0;
                for (uint32_t d = 0; d < s.dk; ++d) {
                    x += double(q[d]) * k[row * s.dk + d];
                }
                x /= std::sqrt(double(s.dk));
                if (s.max_bias > 0) {
                    x += double(kvp_gpu::alibi_slope(h, heads, s.max_bias)) * (pos_[c] - q_pos_[i]);
                }
                const double w = std::exp(x);
                sum += w;
                for (uint32_t d = 0; d < s.dv; ++d) {
                    acc[d] += w * v[row * s.dv + d];
                }
            }
            for (uint32_t d = 0; d < s.dv; ++d) {
                const double want = sum > 0 ? acc[d] / sum : 0;
                const double e = std::fabs(out[(size_t(i) * heads + h) * s.dv + d] - want) / v_max;
                top_error = std::isnan(e) ? std::numeric_limits<double>::infinity() : std::max(top_error, e);
            }
        }
    }
    return top_error;
}

kvp_cuda_config forward_case::config() {
    kvp_cuda_config c = {};
    c.slots = shape.slots;
    c.workers = shape.workers;
    c.cpu_page = shape.workers ? attend_page : nullptr;
    c.cpu_user = this;
    c.vram_bytes = shape.hot * kvp_layer_page_bytes(pager, 0);
    c.vram_keep = 1;
    return c;
}

bool forward_case::all_zero() const {
    for (float x : out) {
        if (!(x == 0.0f)) {
            return false;
        }
    }
    return true;
}
