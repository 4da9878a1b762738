package nfstest

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// packages is a directory that scripts/nfs-packages has filled.
type packages struct {
	root    string
	modules map[string]string // name → path of each module of the kernel
}

// openPackages finds the files below root.
func openPackages(root string) (*packages, error) {
	p := &packages{root: root, modules: make(map[string]string)}
	err := filepath.WalkDir(filepath.Join(root, "lib/modules"), func(path string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			p.modules[moduleName(name)] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the kernel's modules; scripts/nfs-packages unpacks them: %w", err)
	}
	return p, nil
}

// moduleName returns the one spelling of a module's name.
func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// kernel returns the path of the kernel.
func (p *packages) kernel() (string, error) {
	found, err := filepath.Glob(filepath.Join(p.root, "boot/vmlinuz-*"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%s/boot has %d kernels, want 1; remove build/nfs and run scripts/nfs-packages", p.root, len(found))
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// moduleOrder returns the paths of modules and of the modules that they need, each after its
// needs. Modules that are part of the kernel itself have no file and are left out.
func (p *packages) moduleOrder(names ...string) ([]string, error) {
	var order []string
	var add func(name string) error
	add = func(name string) error {
		path, ok := p.modules[moduleName(name)]
		if !ok || slices.Contains(order, path) {
			return nil
		}
		needs, err := moduleNeeds(path)
		if err != nil {
			return err
		}
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleNeeds reads the names of the modules that a module needs from its .modinfo section.
func moduleNeeds(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("read module %s: no section .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	for _, field := range bytes.Split(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}

// libraryDirs are the directories, below the root, in which Debian keeps libraries.
var libraryDirs = []string{"lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"}

// libraries returns the paths of all libraries that programs need, in no order.
func (p *packages) libraries(programs ...string) ([]string, error) {
	found := make(map[string]bool)
	for todo := programs; len(todo) > 0; todo = todo[1:] {
		f, err := elf.Open(todo[0])
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", todo[0], err)
		}
		needs, err := f.ImportedLibraries()
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", todo[0], err)
		}
		for _, need := range needs {
			path, err := p.library(need)
			if err != nil {
				return nil, fmt.Errorf("%s needs a library: %w", todo[0], err)
			}
			if !found[path] {
				found[path] = true
				todo = append(todo, path)
			}
		}
	}
	return slices.Collect(maps.Keys(found)), nil
}

// library finds a library by its name.
func (p *packages) library(name string) (string, error) {
	for _, dir := range libraryDirs {
		path := filepath.Join(p.root, dir, name)
		_, err := os.Stat(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("%s is in none of the packages of scripts/nfs-packages", name)
}
