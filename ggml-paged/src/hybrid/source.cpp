// The pager, through its table, as the source of pages.
#include "hybrid.h"

namespace kvp {

namespace {

iface_layer * layer_of(void * ctx) {
    return static_cast<iface_layer *>(ctx);
}

int pin(void * ctx, uint32_t page, kvp_page * out) {
    iface_layer * l = layer_of(ctx);
    return l->iface->pin(l->pager, l->layer, page, out);
}

void unpin(void * ctx, uint32_t page) {
    iface_layer * l = layer_of(ctx);
    l->iface->unpin(l->pager, l->layer, page, 0);
}

void prefetch(void * ctx, const uint32_t * pages, uint32_t n) {
    iface_layer * l = layer_of(ctx);
    l->iface->prefetch(l->pager, l->layer, pages, n);
}

}  // namespace

page_source source_of(iface_layer * layer) {
    return page_source{layer, pin, unpin, prefetch};
}

}  // namespace kvp
