package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/kvtier/kvtier/"

// importsOf returns the imports of every package within this repository, without tests.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	imports := make(map[string][]string)
	for _, line := range list(t, `{{.ImportPath}} {{join .Imports " "}}`, "./...") {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		imports[name] = []string{}
		for _, path := range fields[1:] {
			if ours, ok := strings.CutPrefix(path, module); ok {
				imports[name] = append(imports[name], ours)
			}
		}
		slices.Sort(imports[name])
	}
	return imports
}

var (
	tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| [^|]* \\| ([^|]*) \\|$")
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// inner are packages without a row: the row of the folder above covers these parts of a test
// or a command.
var inner = []string{
	"diskstore/internal/storetest", "diskstore/internal/testrows", "elastic/gen", "ggml-paged/pager/gen", "internal/cli/clitest", "internal/doctor/doctortest", "internal/machine/machinetest", "internal/testmodel/mkmodel",
	"internal/tierenv/tierenvtest",
}

// TestArchitectureNamesTheImports: the table has every package, above those that it
// imports, and all of its imports.
func TestArchitectureNamesTheImports(t *testing.T) {
	imports := importsOf(t)
	text, _, _ := strings.Cut(read(t, "docs/architecture.md"), "## How it fits Ollama")
	var above []string
	for _, row := range tableRow.FindAllStringSubmatch(text, -1) {
		name := row[1]
		real, isPackage := imports[name]
		if !isPackage {
			require.Empty(t, quoted.FindAllString(row[2], -1), "%s is no package", name)
			continue
		}
		named := []string{}
		for _, q := range quoted.FindAllStringSubmatch(row[2], -1) {
			named = append(named, q[1])
		}
		slices.Sort(named)
		require.Equal(t, real, named, "imports of %s", name)
		for _, path := range real {
			require.NotContains(t, above, path, "%s imports it, and stands below it", name)
		}
		above = append(above, name)
	}
	for name := range imports {
		if !slices.Contains(inner, name) {
			require.Contains(t, above, name, "it has no row")
		}
	}
}

// list is `go list` with a format, for package patterns, as a line for each package.
func list(t *testing.T, format string, patterns ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-f", format}, patterns...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// native are the packages of the native engine, which the Makefile names.
func native(t *testing.T) []string {
	t.Helper()
	patterns := matches(`(?m)^NATIVE := (.*)$`, read(t, "Makefile"))
	require.Len(t, patterns, 1)
	return list(t, "{{.ImportPath}}", strings.Fields(patterns[0])...)
}

// TestNothingImportsTheNativeEngine: so a change of the native engine breaks only its own tests,
// and those need not run for other changes. kvtier reads elastic memory's segments.
func TestNothingImportsTheNativeEngine(t *testing.T) {
	natives := native(t)
	shared := []string{module + "elastic/segment", module + "elastic/balance"}
	for _, line := range list(t, `{{.ImportPath}} {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, "./...") {
		fields := strings.Fields(line)
		if slices.Contains(natives, fields[0]) || fields[0] == module+"internal/docs" { // whose tests read all
			continue
		}
		for _, path := range fields[1:] {
			require.False(t, slices.Contains(natives, path) && !slices.Contains(shared, path), "%s imports %s", fields[0], path)
		}
	}
}

// TestHashOfTheNativeEngine: scripts/native-hash has the files of every native package.
func TestHashOfTheNativeEngine(t *testing.T) {
	hashed := matches(`(?m)^native=\((.*)\)$`, read(t, "scripts/native-hash"))
	require.Len(t, hashed, 1)
	for _, name := range native(t) {
		name = strings.TrimPrefix(name, module)
		require.True(t, slices.ContainsFunc(strings.Fields(hashed[0]), func(folder string) bool {
			return name == strings.TrimSuffix(folder, "/*.go") || strings.HasPrefix(name+"/", folder+"/")
		}), name)
	}
}

// TestHashOfAFileThatGitDoesNotTrack: it may break the native engine, and a hash without it may pass
// where it is missing.
func TestHashOfAFileThatGitDoesNotTrack(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("scripts/native-hash", read(t, "scripts/native-hash"))
	write("kvcache/old.go", "package kvcache")
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	run("git", "init", "--quiet")
	run("git", "add", "kvcache")
	before := run("bash", "scripts/native-hash")
	require.Len(t, before, 65)
	write("kvcache/new.go", "package broken")
	require.NotEqual(t, before, run("bash", "scripts/native-hash"))
}

// TestStoreImportsNoOllama: the page store is for any engine.
func TestStoreImportsNoOllama(t *testing.T) {
	for _, path := range list(t, "{{.ImportPath}}", "-deps", "-test", "./diskstore/...") {
		require.NotContains(t, path, "github.com/ollama/")
	}
}
