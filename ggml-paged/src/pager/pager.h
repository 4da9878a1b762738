// The pager's interface to the rest of the library, beyond the public header.
#pragma once

#include <memory>
#include <mutex>

#include "kv_pager.h"

// kvp_attachment is a slot for state with the lifetime of the pager (batches, ops, compute
// threads). kvp_pager_free destroys it before anything else of the pager.
std::shared_ptr<void> & kvp_attachment(kvp_pager * pager);
std::mutex            & kvp_attachment_mutex(kvp_pager * pager);

// kvp_set_error stores the sentence of kvp_last_error for this thread and returns err
// (a negative errno), so that a failing function can end with it.
int kvp_set_error(int err, const char * format, ...) __attribute__((format(printf, 2, 3)));

// kvp_fail makes an error sticky, unless the pager has one already, and wakes every
// waiter.
void kvp_fail(kvp_pager * pager, int err, const char * message);

// kvp_page_versions writes what kvp_page_version returns for n pages of a layer.
void kvp_page_versions(const kvp_pager * pager, uint32_t layer, const uint32_t * pages, uint32_t n, uint64_t * out);
