package pagefile

// Class tells the kinds of files in a tier apart.
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
	Parent      Key // of a tail; zero otherwise
	Key         Key // zero for a manifest
}
