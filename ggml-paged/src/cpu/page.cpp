#include "cpu/page.h"

#include <cerrno>
#include <new>

#include "cpu/team.h"
#include "pager/pager.h"

using namespace kvp;

float * page_scratch::at_least(size_t n) {
    if (n > floats_) {
        memory_.reset();
        memory_.reset(new (std::nothrow) float[n + ALIGN_FLOATS]);
        floats_ = memory_ ? n : 0;
    }
    return memory_ ? align(memory_.get()) : nullptr;
}

namespace {

// hold_data keeps the batch's data while a page of it is attended.
int hold_data(const kvp_op & op, std::shared_ptr<const batch_data> & data) {
    const char * why = nullptr;
    std::lock_guard<std::mutex> lock(kvp_attachment_mutex(op.batch->pager));
    const int error = refuse_batch(*op.batch, &why);
    data = op.batch->data;
    return error != 0 ? kvp_set_error(error, "%s", why) : 0;
}

int check_page(const kvp_op & op, const batch_data & data, uint32_t page, uint32_t cells) {
    const batch_cells & all = *data.cells;
    if (page < all.first_page || page - all.first_page >= all.pages.size()) {
        return kvp_set_error(-EINVAL, "Attention was asked for page %u of layer %u; its batch has %zu from %u on.",
                             page, op.params.layer, all.pages.size(), all.first_page);
    }
    if (cells > all.page_cells) {
        return kvp_set_error(-EINVAL, "Attention was asked for %u cells of page %u of layer %u; a page has %u.",
                             cells, page, op.params.layer, all.page_cells);
    }
    return 0;
}

} // namespace

int kvp_cpu_page(void *, uint32_t, kvp_op * op, const kvp_io * io, uint32_t page, uint32_t cells, kvp_class,
                 const kvp_page * data, float * m, float * l, float * acc) {
    std::shared_ptr<const batch_data> batch;
    int error = hold_data(*op, batch);
    error = error != 0 ? error : check_page(*op, *batch, page, cells);
    if (error != 0) {
        return error;
    }
    if (!io->q.data) {
        return kvp_set_error(-EINVAL, "Attention of page %u of layer %u needs q.", page, op->params.layer);
    }
    const page_call call = {*op, *io, *batch, shape_of(*op), page - batch->cells->first_page, cells,
                            *data, kernels_in_use(), m, l, acc};
    static thread_local page_scratch scratch;
    const bool done = decode_kernel_pays(call.shape) ? attend_page_decode(call, scratch) : attend_page_prefill(call, scratch);
    return done ? 0 : kvp_set_error(-ENOMEM, "There is no memory to attend page %u of layer %u on the CPU: a smaller batch needs less.",
                                    page, op->params.layer);
}
