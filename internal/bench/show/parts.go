package show

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvtier/kvtier/internal/progress"
)

// StepNames is the width of the column that holds the names of steps.
const StepNames = 42

// Steps shows the steps of a benchmark while they run. A step returns a note about its result.
type Steps struct{ *progress.Display }

// Step runs a step.
func (s Steps) Step(name string, do func() (note string, err error)) error {
	return s.Do(name, func(*progress.Step) (string, error) { return do() })
}

// Repeat runs a step n times.
func (s Steps) Repeat(name string, n int, do func(i int) (note string, err error)) error {
	for i := range n {
		if err := s.Step(fmt.Sprintf("%s, %d of %d", name, i+1, n), func() (string, error) { return do(i) }); err != nil {
			return err
		}
	}
	return nil
}

// Chosen reads -only, a list of parts separated by commas; "" are all of them.
func Chosen(only string, all []string) ([]string, error) {
	if only == "" {
		return all, nil
	}
	chosen := strings.Split(only, ",")
	for _, name := range chosen {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("-only %s: there is no benchmark %q, only %s", only, name, strings.Join(all, ", "))
		}
	}
	return chosen, nil
}

// Lengths reads -sizes, a list of numbers of tokens.
func Lengths(sizes string, least, most int) (lengths []int, err error) {
	for number := range strings.SplitSeq(sizes, ",") {
		n, err := strconv.Atoi(number)
		if err != nil || n < least || n > most {
			return nil, fmt.Errorf("-sizes %s: %q is not a number of tokens from %d to %d", sizes, number, least, most)
		}
		lengths = append(lengths, n)
	}
	return lengths, nil
}

// Save writes a report as JSON.
func Save(path string, report any) error {
	data, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755)
	}
	if err == nil {
		err = os.WriteFile(path, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the report %s: %w", path, err)
	}
	return nil
}
