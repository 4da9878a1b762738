package paging

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/memory"
)

const (
	// DefaultPageCells is the default of OLLAMA_PAGED_CHUNK_SIZE, in cells.
	DefaultPageCells = 2048
	// SelectPageCells is that default with OLLAMA_PAGED_SELECT: the bounds of fewer keys are tighter,
	// and of more keys take less memory.
	SelectPageCells = 32
	// DefaultHostBytes bounds the memory used when OLLAMA_PAGED_HOST_GB is not set.
	DefaultHostBytes = 8 * env.BytesPerGB

	minPageCells, maxPageCells = 16, 65536

	// minSelectPages: the first, the newest, and some to choose.
	minSelectPages = 4
	maxSelectCells = 1 << 30
	maxAfter       = 1 << 30
)

// Config holds the settings of the environment.
type Config struct {
	// PageCells is OLLAMA_PAGED_CHUNK_SIZE: cells of a page, a power of two.
	PageCells int
	// HostBytes is OLLAMA_PAGED_HOST_GB: memory for K/V in a runner. The default is 8 GB, or
	// half of the memory that is available now within the control group's limit, if less.
	HostBytes uint64
	// SpillDir is OLLAMA_PAGED_SPILL_DIR: the directory for pages that do not fit in memory.
	// The default is ~/.ollama/kv-spill.
	SpillDir string
	// SpillBytes is OLLAMA_PAGED_SPILL_GB: the most bytes in SpillDir. The default is half
	// of the free space when the model is loaded.
	SpillBytes uint64
	// SelectCells is OLLAMA_PAGED_SELECT: the tokens that a new token attends to; 0: all.
	SelectCells int
}

// Enabled reports whether OLLAMA_PAGED_ATTN asks for paged attention. A value that is
// neither yes nor no counts as yes here, so that [FromEnvironment] can refuse it.
func Enabled() bool { return env.Asked("OLLAMA_PAGED_ATTN") }

// FromEnvironment reads the variables; the error names every one that cannot work. On a system without
// a pager it is [pager.ErrUnsupported].
func FromEnvironment() (Config, error) {
	if err := pager.Here(); err != nil {
		return Config{}, err
	}
	cells, err := selectCells()
	c := Config{PageCells: DefaultPageCells, SelectCells: cells}
	if c.SelectCells > 0 {
		c.PageCells = SelectPageCells
	}
	_, unclear := env.Bool("OLLAMA_PAGED_ATTN")
	errs := []error{err, unclear}
	if value := env.Value("OLLAMA_PAGED_CHUNK_SIZE"); value != "" {
		n, err := strconv.Atoi(value)
		if err != nil || n < minPageCells || n > maxPageCells || n&(n-1) != 0 {
			errs = append(errs, fmt.Errorf("OLLAMA_PAGED_CHUNK_SIZE=%q is not a power of two from %d to %d", value, minPageCells, maxPageCells))
		}
		c.PageCells = n
	}
	if least := minSelectPages * c.PageCells; c.SelectCells > 0 && c.SelectCells < least {
		errs = append(errs, fmt.Errorf("OLLAMA_PAGED_SELECT=%d is less than %d, four pages of %d tokens", c.SelectCells, least, c.PageCells))
	}
	host, err := gigabytes("OLLAMA_PAGED_HOST_GB")
	errs = append(errs, err)
	spill, err := gigabytes("OLLAMA_PAGED_SPILL_GB")
	errs = append(errs, err)
	c.HostBytes, c.SpillBytes = host, spill
	if host == 0 && err == nil {
		c.HostBytes, err = defaultHostBytes()
		errs = append(errs, err)
	}
	c.SpillDir = env.Value("OLLAMA_PAGED_SPILL_DIR")
	if c.SpillDir == "" {
		c.SpillDir, err = defaultSpillDir()
		errs = append(errs, err)
	}
	if c.SpillDir != "" && !filepath.IsAbs(c.SpillDir) {
		errs = append(errs, fmt.Errorf("OLLAMA_PAGED_SPILL_DIR=%q is not an absolute path", c.SpillDir))
	}
	return c, errors.Join(errs...)
}

// selectCells reads OLLAMA_PAGED_SELECT; 0 for an unset variable, or for 0.
func selectCells() (int, error) {
	value := env.Value("OLLAMA_PAGED_SELECT")
	if value == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxSelectCells {
		return 0, fmt.Errorf("OLLAMA_PAGED_SELECT=%q is not a number of tokens from 0 to %d", value, maxSelectCells)
	}
	return n, nil
}

// After reads OLLAMA_PAGED_AFTER, a number of tokens; it is below 0 where the memory of GPUs decides. With
// OLLAMA_PAGED_SELECT, which tensors cannot do, the default is 0.
func After() (int, error) {
	value := env.Value("OLLAMA_PAGED_AFTER")
	if value == "" {
		if cells, _ := selectCells(); cells > 0 {
			return 0, nil
		}
		return -1, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxAfter {
		return 0, fmt.Errorf("OLLAMA_PAGED_AFTER=%q is not a number of tokens from 0 to %d", value, maxAfter)
	}
	return n, nil
}

// Numerics names what decides the bits of K/V that a runner with pages computes, for the identity of
// stored pages: pages that were computed in another way are not found.
func Numerics() string {
	if c, err := FromEnvironment(); err == nil && c.SelectCells > 0 {
		return fmt.Sprintf("paged select=%d pages=%d", c.SelectCells, c.PageCells)
	}
	return "paged"
}

// gigabytes reads a size of a byte or more in GB and returns bytes; 0 for an unset variable.
func gigabytes(name string) (uint64, error) {
	bytes, err := env.Gigabytes(name, 0)
	if value := env.Value(name); err != nil || value != "" && bytes == 0 {
		return 0, fmt.Errorf("%s=%q is not a size of a byte or more, in gigabytes", name, value)
	}
	return uint64(bytes), nil
}

func defaultHostBytes() (uint64, error) {
	available, err := memory.Available()
	if err != nil {
		return 0, fmt.Errorf("find out how much memory is available: %w; set OLLAMA_PAGED_HOST_GB", err)
	}
	return min(DefaultHostBytes, available/2), nil
}

func defaultSpillDir() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home directory to spill K/V to (%w): set OLLAMA_PAGED_SPILL_DIR", err)
	}
	return filepath.Join(home, ".ollama", "kv-spill"), nil
}

// Open makes the pager, and its spill directory if missing, readable by this user alone: K/V is the
// prompt in another form. alloc and free are C functions for the pager's memory, or nil.
func Open(c Config, alloc, free unsafe.Pointer) (*pager.Pager, error) {
	if err := os.MkdirAll(c.SpillDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory that K/V spills to: %w; set OLLAMA_PAGED_SPILL_DIR to one this user may write", err)
	}
	spill := c.SpillBytes
	if spill == 0 {
		disk, err := vfs.OS.Space(c.SpillDir)
		if err != nil {
			return nil, fmt.Errorf("find out how much is free in %s: %w", c.SpillDir, err)
		}
		spill = max(uint64(disk.Free)/2, 1)
	}
	p, err := pager.New(pager.Config{
		PageCells: c.PageCells, RAMBytes: c.HostBytes,
		SpillDir: c.SpillDir, SpillBytes: spill, Direct: true, SelectCells: c.SelectCells,
		Settings:   "OLLAMA_PAGED_SPILL_GB, OLLAMA_PAGED_HOST_GB",
		ArenaAlloc: alloc, ArenaFree: free,
	})
	if err == nil {
		ours.add(p)
	}
	return p, err
}
