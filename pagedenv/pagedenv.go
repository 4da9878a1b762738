package pagedenv

import (
	"errors"
	"fmt"
	"strconv"
	"time"

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

	// MinSelectPages are the fewest to choose: the first, the newest, and two more.
	MinSelectPages = 4
	// maxSelectTime bounds the time of a token.
	maxSelectTime = time.Minute
	// maxTokens bounds numbers of tokens.
	maxTokens = 1 << 30
)

// A Choice is what a new token attends to: about so many cells, or what it can in a time. The zero Choice is
// all.
type Choice struct {
	Cells int
	Time  time.Duration
}

// All reports whether a token attends to all.
func (c Choice) All() bool { return c == Choice{} }

// Selected is OLLAMA_PAGED_SELECT: a number of tokens, or a time such as 40ms.
func Selected() (Choice, error) {
	value := env.Value("OLLAMA_PAGED_SELECT")
	if d, err := time.ParseDuration(value); err == nil && value != "0" {
		if d < time.Millisecond || d > maxSelectTime {
			return Choice{}, fmt.Errorf("OLLAMA_PAGED_SELECT=%q is not a time from 1ms to %v", value, maxSelectTime)
		}
		return Choice{Time: d}, nil
	}
	cells, err := tokens("OLLAMA_PAGED_SELECT", 0)
	if err != nil {
		err = fmt.Errorf("%w, nor a time such as 40ms", err)
	}
	return Choice{Cells: cells}, err
}

// Cells are OLLAMA_PAGED_CHUNK_SIZE, the cells of a page, a power of two, and what a token attends to of
// them. The error names each variable that cannot work.
func Cells() (page int, selected Choice, err error) {
	selected, errSelect := Selected()
	page = DefaultPageCells
	if !selected.All() {
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
	if least := MinSelectPages * page; selected.Cells > 0 && selected.Cells < least {
		errs = append(errs, fmt.Errorf("OLLAMA_PAGED_SELECT=%d is less than %d, four pages of %d tokens", selected.Cells, least, page))
	}
	return page, selected, errors.Join(errs...)
}

// After is OLLAMA_PAGED_AFTER, a number of tokens; it is below 0 where the memory of GPUs decides. With
// OLLAMA_PAGED_SELECT, which tensors cannot do, the default is 0.
func After() (int, error) {
	unset := -1
	if selected, _ := Selected(); !selected.All() {
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
