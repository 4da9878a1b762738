#include "select/choose.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pager/pager.h"
#include "types/rows.h"

namespace kvp {

namespace {

constexpr uint32_t LANES = 16;  // of a running sum: as many as heads are multiples of

// Positions that every query attends to: models put much of their attention on the first
// ones (arXiv 2309.17453), and on the newest.
constexpr int32_t FIRST_POSITIONS = 4;
constexpr int32_t NEWEST_SHARE    = 8;  // of the budget: one part in so many

// The least number of blocks: the first, and two for the newest positions.
constexpr uint32_t BLOCKS_MIN = 3;

// A choice of more than three of four blocks takes longer than to attend to all.
constexpr uint32_t CHOICE_MOST = 3;
constexpr uint32_t CHOICE_OF   = 4;

uint32_t blocks_wanted(const kvp_op & op, const batch_data & data) {
    return std::max(BLOCKS_MIN, op.params.select_cells / data.cells->page_cells);
}

float dot(const float * a, const float * b, uint32_t n) {
    float sums[LANES] = {};
    for (uint32_t i = 0; i < n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    for (uint32_t step = LANES / 2; step > 0; step /= 2) {
        for (uint32_t j = 0; j < step; j++) {
            sums[j] += sums[j + step];
        }
    }
    return sums[0];
}

// not_nan turns what rows that are not finite give into an extreme.
float not_nan(float score) {
    return std::isnan(score) ? INFINITY : score;
}

} // namespace

bool chooses(const kvp_op & op, const batch_data & data) {
    const auto & marked = data.q_select;
    return op.params.select_cells > 0 && op.params.max_bias == 0 && !data.desc.reserve &&
           std::any_of(marked.begin(), marked.end(), [](uint8_t m) { return m != 0; });
}

bool picks(const kvp_op & op, const batch_data & data, uint32_t query) {
    const uint64_t seen = lists_of(data).seen[query].size();
    return data.q_select[query] != 0 && (uint64_t) CHOICE_OF * blocks_wanted(op, data) < CHOICE_MOST * seen;
}

void choice::begin(uint32_t which, const float * row, int64_t head_stride) {
    const uint32_t dk = op.layer.dk;
    query = which;
    blocks = &lists_of(data).seen[query];
    q.assign((size_t) op.params.heads * 2 * dk, 0.0f);
    scores.resize((size_t) op.params.heads * blocks->size());
    worths.assign(blocks->size(), 0.0f);
    for (uint32_t h = 0; h < op.params.heads; h++) {
        const float * from = reinterpret_cast<const float *>(reinterpret_cast<const char *>(row) + h * head_stride);
        float * to = q.data() + (size_t) h * 2 * dk;
        for (uint32_t d = 0; d < dk; d++) {
            const float x = from[d] * op.params.scale;
            to[d]      = x > 0 ? x : 0.0f;
            to[dk + d] = x < 0 ? x : 0.0f;
        }
    }
}

std::vector<const position_block *> choice::compared() const {
    std::vector<const position_block *> out;
    for (const position_block & block : *blocks) {
        if (!fixed(block)) {
            out.push_back(&block);
        }
    }
    return out;
}

void choice::score_blocks(uint32_t first, uint32_t end) {
    const kvp_layer_desc & layer = op.layer;
    const uint32_t n   = 2 * layer.dk;
    const uint32_t gqa = op.params.heads / layer.kv_heads;
    std::vector<float> row(n);
    for (uint32_t i = first; i < end; i++) {
        if (fixed((*blocks)[i])) {
            continue;
        }
        const uint16_t * bounds = find_bounds(op, table, (*blocks)[i]);
        for (uint32_t h = 0; h < op.params.heads; h++) {
            if (h % gqa == 0) {
                f16_to_floats(bounds + (size_t) h / gqa * n, row.data(), n);
            }
            float score = not_nan(dot(q.data() + (size_t) h * n, row.data(), n));
            if (op.params.softcap > 0) {
                score = op.params.softcap * std::tanh(score / op.params.softcap);
            }
            scores[(size_t) h * blocks->size() + i] = score;
        }
    }
}

void choice::share_heads(uint32_t first, uint32_t end) {
    const size_t n = blocks->size();
    for (uint32_t h = first; h < end; h++) {
        float * row = scores.data() + (size_t) h * n;
        float   max = -INFINITY, sum = 0;
        for (size_t i = 0; i < n; i++) {
            max = fixed((*blocks)[i]) ? max : std::max(max, row[i]);
        }
        for (size_t i = 0; i < n; i++) {
            const position_block & block = (*blocks)[i];
            const float mass = row[i] == max ? 1.0f : std::exp(row[i] - max);
            row[i] = fixed(block) ? 0.0f : mass * (float) block.cells.size();
            sum += row[i];
        }
        for (size_t i = 0; i < n; i++) {
            row[i] = sum > 0 ? row[i] / sum : 0.0f;
        }
    }
}

void choice::add_worths(uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++) {
        for (uint32_t h = 0; h < op.params.heads; h++) {
            worths[i] += scores[(size_t) h * blocks->size() + i];
        }
        worths[i] = fixed((*blocks)[i]) ? INFINITY : worths[i];
    }
}

std::shared_ptr<const batch_data> choice::best() {
    const uint32_t n = blocks_wanted(op, data);
    std::vector<uint32_t> order(blocks->size());
    std::iota(order.begin(), order.end(), 0u);
    std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](uint32_t a, uint32_t b) {
        return worths[a] != worths[b] ? worths[a] > worths[b] : a > b;
    });
    std::vector<const position_block *> list(n);
    for (uint32_t i = 0; i < n; i++) {
        list[i] = &(*blocks)[order[i]];
    }
    table.seen   += blocks->size();
    table.chosen += n;
    return part_of_blocks(data, query, list);
}

bool choice::fixed(const position_block & block) const {
    const int64_t newest = std::max<int64_t>(data.cells->page_cells, op.params.select_cells / NEWEST_SHARE);
    return block.pos_min < FIRST_POSITIONS || block.pos_max > data.q_pos[query] - newest;
}

} // namespace kvp

using namespace kvp;

int kvp_op_chooses(const kvp_op * op) {
    const batch_data * data = op->batch->view;
    return data && chooses(*op, *data);
}

void kvp_pager_select_stats(kvp_pager * pager, kvp_select_stats * out) {
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(pager));
    *out = {};
    if (const bounds_table * table = registry_of(pager).bounds.get()) {
        *out = {table->seen, table->chosen, table->bytes};
    }
}
