// Pages whose contents are in the caller's files.
#include "pager/state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "pager/crc32c.h"
#include "pager/pager.h"
#include "pager/transfer.h"

using namespace kvp;

namespace {

bool past_end(uint64_t offset, uint64_t bytes, uint64_t size) {
    return offset > size || bytes > size - offset;
}

int make_refs(kvp_pager & p, const layer_state & l, const kvp_extent * extents, uint32_t n, std::vector<extent_ref> & out) {
    std::lock_guard<std::mutex> lock(p.files_mutex);
    for (uint32_t i = 0; i < n; i++) {
        const kvp_extent & x = extents[i];
        int rc = 0;
        uint64_t size = 0;
        auto file = p.files.get(x.fd, p.direct, &size, &rc);
        if (!file) {
            return kvp_set_error(rc, "the file of extent %u of a page cannot be used: %s; it must be a regular file open for reading",
                i, strerror(-rc));
        }
        const uint64_t n_rows = x.n;
        if (n_rows == 0 || x.first > p.page_cells || n_rows > p.page_cells - x.first) {
            return kvp_set_error(-EINVAL, "extent %u of a page has rows %u to %llu: a page has %u", i, x.first,
                (unsigned long long) (x.first + n_rows), p.page_cells);
        }
        if (past_end(x.k_offset, n_rows * l.row_k, size) || past_end(x.v_offset, n_rows * l.row_v, size)) {
            return kvp_set_error(-EINVAL, "extent %u of a page ends beyond its file, which has %llu bytes: the file is not the one "
                "that was saved", i, (unsigned long long) size);
        }
        out.emplace_back(std::move(file), x);
    }
    std::sort(out.begin(), out.end(), [](const extent_ref & a, const extent_ref & b) { return a.first < b.first; });
    uint32_t rows = 0;
    for (const extent_ref & x : out) {
        if (x.first != rows) {
            return kvp_set_error(-EINVAL, "the extents of a page must follow each other from row 0: row %u is covered %s", std::min(rows, x.first),
                x.first < rows ? "twice" : "by none");
        }
        rows += x.n;
    }
    return 0;
}

// A frame that was made for a page without contents holds zeros, not the file's bytes.
bool lacks_content(const page_entry & e) {
    return e.state == page_state::resident && !e.dirty && !has_content(e);
}

// Waits until the page is not in transit, and up to date.
int wait_steady(kvp_pager & p, page_id id, lock_t & lock) {
    page_entry & e = p.at(id);
    while (p.error.load() == 0) {
        const bool used = e.pins > 0 || e.waiting > 0;
        if (e.dropping || in_transit(e) || (lacks_content(e) && used)) {
            p.cv_of(id).wait(lock);
        } else if (e.state == page_state::resident && has_rotations(e) && !lacks_content(e)) {
            const int rc = hold(p, id, lock);
            if (rc != 0) {
                return rc;
            }
            let_go(p, id);
        } else {
            return 0;
        }
    }
    return sticky(p);
}

// Only the file has the contents: its present bytes count.
int sums_of_file(kvp_pager & p, page_id id, std::vector<extent_ref> & refs, lock_t & lock) {
    transfer t;
    lock.unlock();
    sum_extents(p, *p.layers[id.layer], refs, t);
    lock.lock();
    p.stats.reads += t.reads;
    p.stats.read_bytes += t.bytes;
    p.stats.extent_bytes += t.extent_bytes;
    return t.rc == 0 ? 0 : kvp_set_error(t.rc, "reading page %u of layer %u from the file that backs it, %s, failed: %s; nothing "
        "was changed", id.page, id.layer, t.file ? t.file->name().c_str() : "", strerror(-t.rc));
}

// The checksums are those of the rows that were saved, even if the file has changed.
int sums_of_frame(kvp_pager & p, page_id id, std::vector<extent_ref> & refs, lock_t & lock) {
    const int rc = hold(p, id, lock);
    if (rc != 0) {
        return rc;
    }
    const layer_state & l = *p.layers[id.layer];
    const uint8_t * data  = p.frame_data(p.at(id).frame);
    lock.unlock();
    for (extent_ref & x : refs) {
        x.k_sum = crc32c(data + x.first * l.row_k, x.n * l.row_k);
        x.v_sum = crc32c(data + l.v_offset + x.first * l.row_v, x.n * l.row_v);
    }
    lock.lock();
    let_go(p, id);
    return 0;
}

// The checksums of a page's present rows. Rows written to the page meanwhile count, and so
// do rows written after those in the files.
int settled_sums(kvp_pager & p, page_id id, std::vector<extent_ref> & refs, lock_t & lock) {
    const page_entry & e   = p.at(id);
    const uint32_t covered = refs.back().first + refs.back().n;
    const uint32_t cells   = p.layers[id.layer]->desc.n_cells - id.page * p.page_cells;
    for (;;) {
        int rc = wait_steady(p, id, lock);
        if (rc != 0) {
            return rc;
        }
        if (std::min(e.written, cells) > covered) {
            return kvp_set_error(-EBUSY, "page %u of layer %u is not backed by a file: the file has its first %u rows, and %u were "
                "written to; nothing was changed", id.page, id.layer, covered, e.written);
        }
        const uint64_t changes = e.changes;
        const bool here = e.dirty || has_content(e);
        rc = here ? sums_of_frame(p, id, refs, lock) : sums_of_file(p, id, refs, lock);
        if (rc == 0) {
            rc = wait_steady(p, id, lock);
        }
        if (rc != 0 || e.changes == changes) {
            return rc;
        }
    }
}

}  // namespace

int kvp_back(kvp_pager * pager, uint32_t layer, uint32_t page, const kvp_extent * extents, uint32_t n) try {
    int rc = check_page(pager, layer, page, "backed by a file");
    if (rc != 0) {
        return rc;
    }
    if (n == 0) {
        return kvp_set_error(-EINVAL, "page %u of layer %u cannot be backed by no file at all", page, layer);
    }
    kvp_pager & p = *pager;
    const page_id id{layer, page};
    std::vector<extent_ref> refs;
    rc = make_refs(p, *p.layers[layer], extents, n, refs);
    if (rc != 0) {
        return rc;
    }
    guard g(p);
    page_entry & e = p.at(id);
    rc = settled_sums(p, id, refs, g.lock);
    if (rc != 0) {
        return rc;
    }
    if (lacks_content(e)) {
        const uint32_t f = e.frame;
        chain_remove(p, f);
        leave_frame(p, id);
        p.frames[f].owner = page_id();
        p.returned.push_back(f);
    }
    if (!e.extra) {
        e.extra.reset(new page_extra);
    }
    free_slot(p, e);
    e.dirty   = false;
    e.written = std::max(e.written, refs.back().first + refs.back().n);
    e.changes++;  // a page without contents now has the contents of the files
    e.extra->rotations.clear();
    e.extra->extents = std::move(refs);
    p.streaming = true;
    return 0;
} catch (const std::bad_alloc &) {
    return kvp_set_error(-ENOMEM, "no memory to note the files behind page %u of layer %u", page, layer);
}
