//go:build !linux

package segment

// List returns ErrUnsupported.
func List(...uint32) ([]Segment, error) { return nil, ErrUnsupported }

// Get returns ErrUnsupported.
func Get(string) (Segment, error) { return Segment{}, ErrUnsupported }

// SetLimit returns an error for names and limits that are none, or ErrUnsupported.
func SetLimit(name string, bytes int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	if err := checkLimit(bytes); err != nil {
		return err
	}
	return ErrUnsupported
}
