// The hot tier: copies of pages that stay in device memory from op to op.
//
//   begin    looks up the pages of an op: which have a copy with the page's present content
//   admit    gives room to others, as far as there is some; their copies are made as they
//            are streamed, which makes them good for the next op
//   commit   after the op has succeeded and its new rows are in the pager
//
// A copy is used only while the page's version is that of the copy (kvp_page_version) and
// the copy has all cells that the op may read. An op that writes rows also puts these rows
// into its copies, which get the new version if the op's own writes account for the whole
// change. Until commit, a copy that the op changes counts as no copy, so that a stopped op
// leaves no wrong copy behind.
//
// Which pages: a forward pass visits all pages of a layer, and begins again with the next
// token. Under such a cycle the copy used least recently is needed next. So while all
// copies are in use, the pages that came first stay and the others are streamed. A copy
// that several passes did not use, because its conversation waits, ended or moved on,
// gives its room to a new copy.
//
// Memory is taken page by page, and only while more than `keep` bytes of the device stay
// free for others.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "cuda/gpu.h"
#include "cuda/op_view.h"

namespace kvp_gpu {

class hot_tier {
public:
    // bytes_max 0: no tier. keep 0: a sixteenth of the device's memory, at least 512 MiB.
    hot_tier(gpu & g, uint64_t bytes_max, uint64_t keep);
    ~hot_tier();
    hot_tier(const hot_tier &) = delete;
    hot_tier & operator=(const hot_tier &) = delete;

    // enabled_for returns whether an op's pages can have copies: the op's table must
    // provide versions.
    bool enabled_for(const op_view & op) const { return bytes_max_ > 0 && op.page_version; }

    // pages ascending. new_rows: the op writes rows to the batch's cells. Called before any
    // page is pinned for the op.
    void begin(const op_view & op, const std::vector<uint32_t> & pages, bool new_rows);
    uint32_t hits() const { return hits_; }  // copies that can be used
    void admit();
    void commit();

    // The copy of a page of the op that began last; NULL: it has none. usable: it
    // equals the page before the op; else it is to be filled.
    uint8_t * copy_of(uint32_t page, bool * usable) const;

    struct counters {
        uint64_t bytes, copies;  // in device memory now
        uint64_t hits, fills;    // copies used; made or made anew
        uint64_t evictions;      // copies that made room
    };
    counters count() const;  // after the last op; beside one, from any thread

private:
    using key = std::tuple<const kvp_pager *, uint32_t, uint32_t>;  // layer, page
    struct copy {
        key       of;
        uint8_t * data;
        size_t    bytes;
        uint64_t  version;  // that it was made from; 0: it is nothing
        uint32_t  cells;    // leading cells in the copy
        uint64_t  round;    // round of the last use
    };
    using chain = std::list<copy>;  // least recently used first

    // A page of the op: its copy, its version, and the op's writes to it.
    struct use {
        uint32_t        page, cells;
        uint64_t        version;
        uint32_t        writes;  // unpins that writing the op's rows will make
        bool            usable;
        chain::iterator at;      // copies_.end(): it has none
    };

    void     next_round(const op_view & op);
    std::map<uint32_t, uint32_t> note_writes();
    bool     is_current(const copy & c, const use & u) const;
    uint8_t * room(size_t bytes);
    bool     may_grow(size_t bytes);
    void     drop(chain::iterator at);
    void     publish();

    gpu &          gpu_;
    const uint64_t bytes_max_, keep_;
    chain          copies_;
    std::map<key, chain::iterator> index_;
    uint64_t       bytes_ = 0;

    // A round is about one forward pass, and ends when a layer comes again with another
    // batch.
    struct layer_use {
        uint64_t          round = 0;
        const kvp_batch * batch = nullptr;
    };
    std::map<std::pair<const kvp_pager *, uint32_t>, layer_use> layers_;
    uint64_t round_ = 1;
    uint64_t refused_round_ = 0;  // last round in which the device had no more memory

    op_view               op_ = {};
    std::vector<use>      uses_;
    std::vector<uint32_t> new_cells_;  // of the op, ascending
    uint32_t              hits_ = 0;
    counters              counters_ = {};

    mutable std::mutex published_mutex_;
    counters           published_ = {};  // guarded by it
};

} // namespace kvp_gpu
