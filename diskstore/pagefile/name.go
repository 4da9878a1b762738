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

// ColdName returns the name of the lossy page that stands for an exact one.
func ColdName(exact Name) Name {
	exact.Fingerprint = ColdFingerprint(exact.Fingerprint)
	return exact
}

// Name returns the name of the page with this header.
func (h *Header) Name() Name {
	name := Name{Fingerprint: h.Fingerprint, Class: ClassPage, Key: h.Key}
	if h.Tail() {
		name.Class = ClassTail
	}
	return name
}
