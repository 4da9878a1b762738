package ollamasrc

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/mod/semver"
)

// ModulePath is the Go module that holds Ollama's source.
const ModulePath = "github.com/ollama/ollama"

// The range of releases whose native engine kvtier patches.
const (
	OldestVersion  = "v0.16.0"
	NewestVersion  = "v0.24.0"
	DefaultVersion = "v0.16.1"

	// llamaServerVersion is the first release without the native engine.
	llamaServerVersion = "v0.30.0"
)

// moduleSums pins the checksums of the supported releases on the Go module proxy. Other
// releases need a git clone.
var moduleSums = map[string]string{
	"v0.16.1": "h1:DIxnLdS0om3hb7HheJqj6+ZnPCCMWmy/vyUxiQgRYoI=",
	"v0.16.2": "h1:iZ/vV7t9QRU0MXfwWXl0+6HBb2xUULubksqK0dfB+og=",
	"v0.17.4": "h1:X3KNm9x4BlHqk/AXMGtC7pBAFd46nmJmy8yDaBZLo9s=",
	"v0.24.0": "h1:CBZ0ffE+cxMWRWau5yD5vXHkiZHAeuxLk+3j55u0XxQ=",
}

// ModuleVersions lists the releases that need no clone, oldest first.
func ModuleVersions() []string {
	return slices.SortedFunc(maps.Keys(moduleSums), semver.Compare)
}

// CheckVersion returns the reason why a version cannot be patched, or nil. CheckVersion
// judges the number alone: opening the source shows whether the release exists.
func CheckVersion(version string) error {
	supported := fmt.Sprintf("kvtier supports %s … %s", OldestVersion, NewestVersion)
	switch {
	case semver.Canonical(version) != version || version == "":
		return fmt.Errorf("%q is not an Ollama version; write it like %s", version, DefaultVersion)
	case semver.Compare(version, llamaServerVersion) >= 0:
		return fmt.Errorf("Ollama v0.30 and later drive llama-server instead of the native engine that kvtier patches; %s", supported)
	case semver.Prerelease(version) != "" || semver.Build(version) != "":
		return fmt.Errorf("Ollama %s is not a final release; %s", version, supported)
	case semver.Compare(version, OldestVersion) < 0:
		return fmt.Errorf("Ollama %s is too old; %s", version, supported)
	case semver.Compare(version, NewestVersion) > 0:
		return fmt.Errorf("Ollama %s is not known; %s", version, supported)
	}
	return nil
}
