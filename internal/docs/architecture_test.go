package docs

import (
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
	"internal/testmodel/recall-prompts", "internal/tierenv/tierenvtest",
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
