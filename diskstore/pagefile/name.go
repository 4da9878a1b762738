package pagefile

// Class is the kind of a file in a tier.
type Class uint8

const (
	ClassPage     Class = iota // a full page
	ClassTail                  // an incomplete last page
	ClassManifest              // a fingerprint's manifest.json
)

// Name identifies a file in every tier.
type Name struct {
	Fingerprint Key
	Class       Class
	Parent      Key // of a tail in the place that versions before prefixes gave it; zero otherwise
	Key         Key // zero for a manifest
}
