package tierenv

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/secretfile"
)

// TenantsVariable names the file of [Tenants].
const TenantsVariable = "OLLAMA_KV_TIER_TENANTS_FILE"

// Tenants are the namespaces of API keys, by the SHA-256 of each key. Nil separates no keys.
type Tenants map[[sha256.Size]byte]string

// tenantsMost bounds a file of tenants, in bytes.
const tenantsMost = 1 << 20

// tenantLine is a namespace and an API key.
var tenantLine = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,63})[ \t]+([!-~]+)$`)

// TenantsFromEnvironment reads the file that [TenantsVariable] names; nil without one. No error has a key.
func TenantsFromEnvironment() (Tenants, error) {
	path := env.Value(TenantsVariable)
	if path == "" {
		return nil, nil
	}
	tenants, err := readTenants(path)
	if err != nil {
		return nil, fmt.Errorf("read the tenants of %s: %w", TenantsVariable, err)
	}
	return tenants, nil
}

// readTenants reads a file with a namespace and an API key on each line. Lines that are empty or begin with # are
// left out.
func readTenants(path string) (Tenants, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%q is not an absolute path", path)
	}
	text, err := secretfile.Read(path, tenantsMost)
	if err != nil {
		return nil, err
	}
	tenants := make(Tenants)
	for i, line := range strings.Split(text, "\n") {
		line = strings.Trim(line, " \t\r")
		if line == "" || line[0] == '#' {
			continue
		}
		found := tenantLine.FindStringSubmatch(line)
		if found == nil {
			return nil, fmt.Errorf("line %d of %s is no namespace of 1 to 64 letters, digits, dots, hyphens and underscores with an API key without spaces behind it", i+1, path)
		}
		key := sha256.Sum256([]byte(found[2]))
		if _, twice := tenants[key]; twice {
			return nil, fmt.Errorf("line %d of %s repeats the API key of a line before it: remove one of them", i+1, path)
		}
		tenants[key] = found[1]
	}
	return tenants, nil
}
