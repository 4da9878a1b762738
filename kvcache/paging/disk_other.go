//go:build !linux

package paging

import "github.com/kvtier/kvtier/ggml-paged/pager"

func freeBytes(string) (uint64, error) { return 0, pager.ErrUnsupported }
