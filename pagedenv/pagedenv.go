package pagedenv

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/kvtier/kvtier/internal/env"
)

const (
	// DefaultPageCells is the default of OLLAMA_PAGED_CHUNK_SIZE, in cells.
	DefaultPageCells = 2048
	// SelectPageCells is that default with OLLAMA_PAGED_SELECT: the bounds of fewer keys are tighter,
	// and of more keys take less memory.
	SelectPageCells = 32

	// DefaultHostBytes bounds the memory for K/V where OLLAMA_PAGED_HOST_GB is not set.
	DefaultHostBytes = 8 * env.BytesPerGB

	minPageCells, maxPageCells = 16, 65536

	// minSelectPages: the first, the newest, and some to choose.
	minSelectPages = 4
	// maxTokens bounds numbers of tokens.
	maxTokens = 1 << 30
)

// Cells are OLLAMA_PAGED_CHUNK_SIZE, the cells of a page, a power of two, and OLLAMA_PAGED_SELECT, the tokens
// that a new token attends to; 0: all. The error names each that cannot work.
func Cells() (page, selected int, err error) {
	selected, errSelect := tokens("OLLAMA_PAGED_SELECT", 0)
	page = DefaultPageCells
	if selected > 0 {
		page = SelectPageCells
	}
	errs := []error{errSelect}
	if value := env.Value("OLLAMA_PAGED_CHUNK_SIZE"); value != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n < minPageCells || n > maxPageCells || n&(n-1) != 0 {
			errs = append(errs, fmt.Errorf("OLLAMA_PAGED_CHUNK_SIZE=%q is not a power of two from %d to %d", value, minPageCells, maxPageCells))
		}
		page = n
	}
	if least := minSelectPages * page; selected > 0 && selected < least {
		errs = append(errs, fmt.Errorf("OLLAMA_PAGED_SELECT=%d is less than %d, four pages of %d tokens", selected, least, page))
	}
	return page, selected, errors.Join(errs...)
}

// After is OLLAMA_PAGED_AFTER, a number of tokens; it is below 0 where the memory of GPUs decides. With
// OLLAMA_PAGED_SELECT, which tensors cannot do, the default is 0.
func After() (int, error) {
	unset := -1
	if selected, _ := tokens("OLLAMA_PAGED_SELECT", 0); selected > 0 {
		unset = 0
	}
	return tokens("OLLAMA_PAGED_AFTER", unset)
}

// HostBytes is OLLAMA_PAGED_HOST_GB in bytes; 0 where it is not set.
func HostBytes() (uint64, error) { return gigabytes("OLLAMA_PAGED_HOST_GB") }

// SpillBytes is OLLAMA_PAGED_SPILL_GB in bytes; 0 where it is not set.
func SpillBytes() (uint64, error) { return gigabytes("OLLAMA_PAGED_SPILL_GB") }

// tokens reads a number of tokens.
func tokens(name string, unset int) (int, error) {
	value := env.Value(name)
	if value == "" {
		return unset, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxTokens {
		return 0, fmt.Errorf("%s=%q is not a number of tokens from 0 to %d", name, value, maxTokens)
	}
	return n, nil
}

// gigabytes reads a size of a byte or more in GB.
func gigabytes(name string) (uint64, error) {
	bytes, err := env.Gigabytes(name, 0)
	if value := env.Value(name); err != nil || value != "" && bytes == 0 {
		return 0, fmt.Errorf("%s=%q is not a size of a byte or more, in gigabytes", name, value)
	}
	return uint64(bytes), nil
}
