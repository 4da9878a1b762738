#include "paged_case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "reference.h"

namespace {

// Multiplications that the reference may take per case.
constexpr double REFERENCE_WORK = 1e8;

void must(int result) {
    if (result < 0) {
        throw std::runtime_error(kvp_last_error());
    }
}

uint64_t frame_bytes(const test_case & c) {
    const auto part = [&](int type, uint32_t n) {
        return (c.page_cells * c.kv_heads * kvp_row_bytes(type, n) + KVP_ALIGN - 1) / KVP_ALIGN * KVP_ALIGN;
    };
    return part(c.type_k, c.dk) + part(c.type_v, c.dv);
}

} // namespace

case_inputs final_inputs(const test_case & c) {
    case_inputs in = make_inputs(c);
    const size_t bytes_k = kvp_row_bytes(c.type_k, c.dk), bytes_v = kvp_row_bytes(c.type_v, c.dv);
    for (uint32_t i = 0; i < c.n_q; i++) {
        for (uint32_t h = 0; h < c.kv_heads; h++) {
            const size_t from = (size_t) i * c.kv_heads + h, to = (size_t) in.q_cell[i] * c.kv_heads + h;
            kvp_quantize_row(c.type_k, &in.k_new[from * c.dk], &in.k[to * bytes_k], c.dk);
            kvp_quantize_row(c.type_v, &in.v_new[from * c.dv], &in.v[to * bytes_v], c.dv);
        }
    }
    return in;
}

const char * spill_dir() {
    const char * named = std::getenv("KVP_SPILL_DIR");
    return !named ? SPILL_DIR : std::strcmp(named, "none") == 0 ? nullptr : named;
}

paged_case::paged_case(const backend_module & m, const test_case & c, const case_inputs & in, const pager_settings & settings)
    : params_(in.params) {
    const uint32_t pages = (in.n_cells + c.page_cells - 1) / c.page_cells;
    kvp_config config = {};
    config.page_cells    = c.page_cells;
    config.ram_bytes     = (settings.frames && spill_dir() ? settings.frames : pages) * frame_bytes(c);
    config.spill_dir     = spill_dir();
    config.io_fault      = settings.io_fault;
    config.io_fault_user = settings.io_fault_user;
    if (m.paged) {
        config.arena_alloc = m.paged->arena_alloc;
        config.arena_free  = m.paged->arena_free;
    }
    uint32_t layer;
    must(kvp_pager_create(&config, &pager_));
    must(kvp_layer_add(pager_, &in.layer, &layer));
    must(kvp_pager_start(pager_));
    must(kvp_reserve(pager_, in.layer.group, pages));
    std::vector<uint32_t> cells(in.n_cells);
    std::iota(cells.begin(), cells.end(), 0u);
    must(kvp_rows_write(pager_, layer, cells.data(), in.n_cells, in.k.data(), in.v.data()));
}

paged_case::~paged_case() {
    kvp_pager_free(pager_);
}

void paged_case::begin(const kvp_batch_desc & desc) {
    must(kvp_batch_begin(pager_, &desc, &batch_));
}

kvp_op * paged_case::op() {
    kvp_op * op = nullptr;
    must(kvp_op_new(batch_, &params_, &op));
    return op;
}

void paged_case::check() const {
    const char * message;
    if (kvp_pager_error(pager_, &message) != 0) {
        throw std::runtime_error(message);
    }
}

double error_of(const test_case & c, const case_inputs & final, const std::vector<float> & out) {
    const kvp_batch_desc  desc  = final.batch_desc();
    const reference_cells cells = {final.n_cells, final.pos.data(), final.seqs.data(), final.k.data(), final.v.data()};
    const uint64_t rows = (uint64_t) c.n_q * c.heads;
    const uint64_t take = std::min<uint64_t>(rows, std::max(8.0, REFERENCE_WORK / ((double) final.n_cells * (c.dk + c.dv))));
    double worst = 0;
    for (uint64_t i = 0; i < take; i++) {
        const uint64_t row   = take == 1 ? 0 : i * (rows - 1) / (take - 1);
        const uint32_t query = (uint32_t) (row / c.heads), head = (uint32_t) (row % c.heads);
        const reference_query q = {final.q_pos[query], final.q_seq[query], !final.q_except.empty() && final.q_except[query],
                                   &final.q[(size_t) query * c.heads * c.dk]};
        const std::vector<double> want =
            reference_row(final.layer, final.params, desc, cells, q, head, final.sinks.empty() ? nullptr : &final.sinks[head]);
        for (uint32_t d = 0; d < c.dv; d++) {
            const double error = std::fabs(out[row * c.dv + d] - want[d]) / final.v_max;
            worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error;
        }
    }
    return worst;
}
