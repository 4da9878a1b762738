#include "cuda/hot_tier.h"

#include <algorithm>

namespace kvp_gpu {

namespace {

// Passes that a copy may miss, because other slots of the engine have their turn.
constexpr uint64_t stale_rounds = 4;
constexpr uint64_t keep_part = 16, keep_min = uint64_t(512) << 20;

} // namespace

hot_tier::hot_tier(gpu & g, uint64_t bytes_max, uint64_t keep) : gpu_(g), bytes_max_(bytes_max), keep_(keep) {}

hot_tier::~hot_tier() {
    if (!copies_.empty()) {
        gpu_.drain();
    }
    for (const copy & c : copies_) {
        gpu_.keep_free(c.data);
    }
}

// --- looking up -----------------------------------------------------------------------

void hot_tier::next_round(const op_view & op) {
    layer_use & layer = layers_[{op.pager, op.params->layer}];
    if (layer.round == round_ && layer.batch != op.batch) {
        ++round_;
    }
    layer = {round_, op.batch};
}

// Cells after those that the copy has are no loss where the op brings all of them itself.
bool hot_tier::is_current(const copy & c, const use & u) const {
    if (c.version != u.version || c.bytes != op_.page_bytes) {
        return false;
    }
    if (u.cells <= c.cells) {
        return true;
    }
    const uint32_t page = u.page * op_.page_cells;
    const auto first = std::lower_bound(new_cells_.begin(), new_cells_.end(), page + c.cells);
    const auto end = std::lower_bound(first, new_cells_.end(), page + u.cells);
    return uint32_t(end - first) == u.cells - c.cells;
}

// Which pages the op writes to, and in how many unpins: kvp_rows_write makes one for each
// run of cells of one page.
std::map<uint32_t, uint32_t> hot_tier::note_writes() {
    std::map<uint32_t, uint32_t> writes;
    const uint32_t * cells = op_.desc->q_cell;
    for (uint32_t i = 0; i < op_.desc->n_q; ++i) {
        const uint32_t page = cells[i] / op_.page_cells;
        writes[page] += i == 0 || cells[i - 1] / op_.page_cells != page;
        new_cells_.push_back(cells[i]);
    }
    std::sort(new_cells_.begin(), new_cells_.end());
    new_cells_.erase(std::unique(new_cells_.begin(), new_cells_.end()), new_cells_.end());
    return writes;
}

void hot_tier::begin(const op_view & op, const std::vector<uint32_t> & pages, bool new_rows) {
    op_ = op;
    uses_.clear();
    hits_ = 0;
    if (!enabled_for(op)) {
        return;
    }
    next_round(op);
    new_cells_.clear();
    const std::map<uint32_t, uint32_t> writes = new_rows ? note_writes() : std::map<uint32_t, uint32_t>();
    for (uint32_t page : pages) {
        const auto written = writes.find(page);
        const auto found = index_.find(key(op.pager, op.params->layer, page));
        use u = {page, cells_of(op, page), op.page_version(op.pager, op.params->layer, page),
                 written == writes.end() ? 0 : written->second, false, copies_.end()};
        if (found != index_.end()) {
            u.at = found->second;
            u.usable = is_current(*u.at, u);
            u.at->round = round_;
            copies_.splice(copies_.end(), copies_, u.at);
            if (!u.usable || u.writes) {
                u.at->version = 0;
            }
            hits_ += u.usable;
            counters_.hits += u.usable;
        }
        uses_.push_back(u);
    }
}

uint8_t * hot_tier::copy_of(uint32_t page, bool * usable) const {
    const auto at = std::lower_bound(uses_.begin(), uses_.end(), page, [](const use & u, uint32_t p) { return u.page < p; });
    if (at == uses_.end() || at->page != page || at->at == copies_.end()) {
        return nullptr;
    }
    *usable = at->usable;
    return at->at->data;
}

// --- room -----------------------------------------------------------------------------

bool hot_tier::may_grow(size_t bytes) {
    if (bytes > bytes_max_ - std::min(bytes_, bytes_max_) || refused_round_ == round_) {
        return false;
    }
    uint64_t free = 0, total = 0;
    const bool known = gpu_.memory(&free, &total) == 0;
    const uint64_t keep = keep_ ? keep_ : std::max(total / keep_part, keep_min);
    if (!known || free < keep || free - keep < bytes) {
        // The next pass asks again: asking takes time, and other users may free memory.
        refused_round_ = round_;
        return false;
    }
    return true;
}

void hot_tier::drop(chain::iterator at) {
    index_.erase(at->of);
    bytes_ -= at->bytes;
    copies_.erase(at);
}

// Memory for another copy; NULL: all memory is in use.
uint8_t * hot_tier::room(size_t bytes) {
    for (;;) {
        if (may_grow(bytes)) {
            if (void * memory = gpu_.keep_alloc(bytes)) {
                bytes_ += bytes;
                return static_cast<uint8_t *>(memory);
            }
            refused_round_ = round_;
        }
        const auto oldest = copies_.begin();
        if (oldest == copies_.end() || round_ - oldest->round < stale_rounds) {
            return nullptr;
        }
        uint8_t * memory = oldest->data;
        const bool fits = oldest->bytes == bytes;
        ++counters_.evictions;
        drop(oldest);
        if (fits) {
            // Past and later uses of it are in the order of the compute stream.
            bytes_ += bytes;
            return memory;
        }
        gpu_.drain();
        gpu_.keep_free(memory);
        refused_round_ = 0;
    }
}

void hot_tier::admit() {
    for (use & u : uses_) {
        if (u.at != copies_.end() && u.at->bytes != op_.page_bytes) {
            // A copy of another pager at the same address.
            uint8_t * memory = u.at->data;
            drop(u.at);
            u.at = copies_.end();
            gpu_.drain();
            gpu_.keep_free(memory);
        }
        if (u.at != copies_.end()) {
            continue;
        }
        uint8_t * memory = room(op_.page_bytes);
        if (!memory) {
            return;
        }
        const key of(op_.pager, op_.params->layer, u.page);
        u.at = copies_.insert(copies_.end(), copy{of, memory, op_.page_bytes, 0, 0, round_});
        index_[of] = u.at;
    }
}

// --- after the op ---------------------------------------------------------------------

void hot_tier::commit() {
    for (const use & u : uses_) {
        if (u.at == copies_.end() || (u.usable && !u.writes)) {
            continue;
        }
        counters_.fills += !u.usable;
        const uint64_t now = op_.page_version(op_.pager, op_.params->layer, u.page);
        u.at->version = now == u.version + u.writes ? now : 0;
        u.at->cells = u.usable ? std::max(u.at->cells, u.cells) : u.cells;
    }
    uses_.clear();
    publish();
}

void hot_tier::publish() {
    std::lock_guard<std::mutex> lock(published_mutex_);
    published_ = counters_;
    published_.bytes = bytes_;
    published_.copies = copies_.size();
}

hot_tier::counters hot_tier::count() const {
    std::lock_guard<std::mutex> lock(published_mutex_);
    return published_;
}

} // namespace kvp_gpu
