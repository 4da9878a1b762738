package tierenv

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/kvtier/kvtier/internal/env"
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
	text, err := readTenantsFile(path)
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

// readTenantsFile reads a regular file that other users may neither read nor replace.
func readTenantsFile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%q is not an absolute path", path)
	}
	info, err := os.Stat(path) // opening a pipe may hang
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return "", err
	}
	if perm := info.Mode().Perm(); perm&0o027 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s has mode %04o, and other users may read or replace it: run chmod 600 %s", path, perm, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, tenantsMost+1))
	if len(text) > tenantsMost {
		return "", fmt.Errorf("%s has more than %d bytes", path, tenantsMost)
	}
	return string(text), err
}
