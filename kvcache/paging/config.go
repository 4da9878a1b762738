package paging

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/ggml-paged/pager"
	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/memory"
	"github.com/kvtier/kvtier/pagedenv"
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
	// Select is OLLAMA_PAGED_SELECT: what a new token attends to.
	Select pagedenv.Choice
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
	page, selected, err := pagedenv.Cells()
	c := Config{PageCells: page, Select: selected}
	_, unclear := env.Bool("OLLAMA_PAGED_ATTN")
	errs := []error{err, unclear}
	host, err := pagedenv.HostBytes()
	errs = append(errs, err)
	spill, errSpill := pagedenv.SpillBytes()
	errs = append(errs, errSpill)
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

// Numerics names what decides the bits of K/V that a runner with pages computes, for the identity of
// stored pages: pages that were computed in another way are not found.
func Numerics() string {
	name := "paged"
	if env.Value("KVP_MMA") == "1" {
		name += " mma"
	}
	c, err := FromEnvironment()
	switch {
	case err != nil || c.Select.All():
		return name
	case c.Select.Time > 0:
		return fmt.Sprintf("%s select=%v pages=%d", name, c.Select.Time, c.PageCells)
	}
	return fmt.Sprintf("%s select=%d pages=%d", name, c.Select.Cells, c.PageCells)
}

func defaultHostBytes() (uint64, error) {
	available, err := memory.Available()
	if err != nil {
		return 0, fmt.Errorf("find out how much memory is available: %w; set OLLAMA_PAGED_HOST_GB", err)
	}
	return min(pagedenv.DefaultHostBytes, available/2), nil
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
		SpillDir: c.SpillDir, SpillBytes: spill, Direct: true, Selects: !c.Select.All(),
		Settings:   "OLLAMA_PAGED_SPILL_GB, OLLAMA_PAGED_HOST_GB",
		ArenaAlloc: alloc, ArenaFree: free,
	})
	if err == nil {
		ours.add(p)
	}
	return p, err
}
