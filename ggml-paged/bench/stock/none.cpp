// Without ggml's source there is nothing to compare with.
#include "stock.h"

std::unique_ptr<stock_attention> make_stock(const stock_shape &, uint32_t) { return nullptr; }

bool has_stock() { return false; }
