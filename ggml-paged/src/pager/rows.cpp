// Rows of single cells, in and out.
#include "pager/state.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "pager/pager.h"

using namespace kvp;

namespace {

struct side {
    uint8_t * page;   // the K or the V of a pinned page
    size_t    row;
};

// Neighbouring cells of the page that are neighbours in the list, too, are one copy.
void copy_rows(const side & s, const uint32_t * cells, uint32_t n, uint32_t page_cells, uint8_t * rows, bool write) {
    for (uint32_t i = 0; i < n;) {
        uint32_t run = 1;
        while (i + run < n && cells[i + run] == cells[i] + run) {
            run++;
        }
        uint8_t * at = s.page + (cells[i] % page_cells) * s.row;
        uint8_t * r  = rows + i * s.row;
        std::memcpy(write ? at : r, write ? r : at, run * s.row);
        i += run;
    }
}

int each_page(kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, uint8_t * k, uint8_t * v, bool write) {
    const char * what = write ? "written to" : "read";
    const int bad = check_page(pager, layer, 0, what);
    if (bad != 0) {
        return bad;
    }
    const layer_state & l = *pager->layers[layer];
    for (uint32_t i = 0; i < n; i++) {
        if (cells[i] >= l.desc.n_cells) {
            return kvp_set_error(-EINVAL, "cell %u of layer %u cannot be %s: the layer has %u cells", cells[i], layer, what, l.desc.n_cells);
        }
    }
    for (uint32_t i = 0; i < n;) {
        const uint32_t page = cells[i] / pager->page_cells;
        uint32_t run = 1;
        while (i + run < n && cells[i + run] / pager->page_cells == page) {
            run++;
        }
        kvp_page at;
        const int rc = kvp_pin(pager, layer, page, &at);
        if (rc != 0) {
            return rc;
        }
        if (k != nullptr) {
            copy_rows({at.k, l.row_k}, cells + i, run, pager->page_cells, k + i * l.row_k, write);
        }
        if (v != nullptr) {
            copy_rows({at.v, l.row_v}, cells + i, run, pager->page_cells, v + i * l.row_v, write);
        }
        if (write) {
            const auto ends = std::minmax_element(cells + i, cells + i + run);
            kvp_unpin_rows(pager, layer, page, *ends.first % pager->page_cells, *ends.second - *ends.first + 1);
        } else {
            kvp_unpin(pager, layer, page, 0);
        }
        i += run;
    }
    return 0;
}

}  // namespace

int kvp_rows_read(kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, void * k, void * v) {
    return each_page(pager, layer, cells, n, static_cast<uint8_t *>(k), static_cast<uint8_t *>(v), false);
}

int kvp_rows_write(kvp_pager * pager, uint32_t layer, const uint32_t * cells, uint32_t n, const void * k, const void * v) {
    // The const is cast away to share one path of copying; the rows are not written to.
    return each_page(pager, layer, cells, n, static_cast<uint8_t *>(const_cast<void *>(k)),
                     static_cast<uint8_t *>(const_cast<void *>(v)), true);
}
