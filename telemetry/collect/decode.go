package collect

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kvtier/kvtier/telemetry"
)

// Bounds of a report besides those of package telemetry.
const (
	tiersMax  = 8
	memoryMax = 64
)

// wire is a report whose lists are not decoded yet: a list of a million empty objects would
// take a hundred times its length in memory.
type wire struct {
	telemetry.Report
	Tiers   json.RawMessage `json:"tiers"`
	Slots   json.RawMessage `json:"slots"`
	Memory  json.RawMessage `json:"memory"`
	Prompts json.RawMessage `json:"prompts"`
	Busters json.RawMessage `json:"busters"`
}

// decodeReport decodes a report and checks it against the bounds. Series that this build does
// not know are left out.
func decodeReport(data []byte) (*telemetry.Report, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, fmt.Errorf("decode the report: %w", err)
	}
	r := &w.Report
	if r.Version != telemetry.Version {
		return nil, fmt.Errorf("the report has version %d, and this collector reads version %d", r.Version, telemetry.Version)
	}
	var err error
	if r.Tiers, err = decodeList[telemetry.Tier]("tiers", w.Tiers, tiersMax); err != nil {
		return nil, err
	}
	if r.Slots, err = decodeList[telemetry.Slot]("slots", w.Slots, telemetry.SlotsMax); err != nil {
		return nil, err
	}
	if r.Memory, err = decodeList[telemetry.Memory]("memory", w.Memory, memoryMax); err != nil {
		return nil, err
	}
	if r.Prompts, err = decodeList[telemetry.Prompt]("prompts", w.Prompts, telemetry.PromptsMax); err != nil {
		return nil, err
	}
	if r.Busters, err = decodeList[telemetry.Buster]("busters", w.Busters, telemetry.BustersMax); err != nil {
		return nil, err
	}
	if err := checkReport(r); err != nil {
		return nil, fmt.Errorf("check the report: %w", err)
	}
	return r, nil
}

// decodeList decodes a list of at most countMax values. The result is never nil.
func decodeList[T any](what string, data json.RawMessage, countMax int) ([]T, error) {
	list := []T{}
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		return list, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if begin, err := d.Token(); err != nil || begin != json.Delim('[') {
		return nil, fmt.Errorf("decode %s: it is not a list", what)
	}
	for d.More() {
		if len(list) == countMax {
			return nil, fmt.Errorf("decode %s: there are more than %d %s", what, countMax, what)
		}
		var value T
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("decode %s: %w", what, err)
		}
		list = append(list, value)
	}
	return list, nil
}

// wireState is a state whose lists are not decoded yet. Root reads the collectors of all users,
// and one of them may be another program.
type wireState struct {
	telemetry.State
	Models    json.RawMessage `json:"models"`
	Processes json.RawMessage `json:"processes"`
	Tiers     json.RawMessage `json:"tiers"`
	Prompts   json.RawMessage `json:"prompts"`
}

type wireProcess struct {
	telemetry.ProcessState
	Slots   json.RawMessage `json:"slots"`
	Memory  json.RawMessage `json:"memory"`
	Busters json.RawMessage `json:"busters"`
}

// decodeState decodes a collector's answer within the bounds of a state.
func decodeState(data []byte) (telemetry.State, error) {
	var w wireState
	if err := json.Unmarshal(data, &w); err != nil {
		return telemetry.State{}, err
	}
	s := w.State
	if s.Version != telemetry.Version {
		return s, fmt.Errorf("it has version %d, and this program reads version %d", s.Version, telemetry.Version)
	}
	processes, err := decodeList[wireProcess]("processes", w.Processes, telemetry.ProcessesMax)
	if err != nil {
		return s, err
	}
	s.Processes = []telemetry.ProcessState{}
	for _, p := range processes {
		if err := p.decodeLists(); err != nil {
			return s, err
		}
		s.Processes = append(s.Processes, p.ProcessState)
	}
	if s.Models, err = decodeList[telemetry.ModelState]("models", w.Models, telemetry.ModelsMax); err != nil {
		return s, err
	}
	if s.Tiers, err = decodeList[telemetry.Tier]("tiers", w.Tiers, directoriesMax+1); err != nil { // and memory
		return s, err
	}
	s.Prompts, err = decodeList[telemetry.StatePrompt]("prompts", w.Prompts, telemetry.StatePromptsMax)
	return s, err
}

func (w *wireProcess) decodeLists() (err error) {
	if w.ProcessState.Slots, err = decodeList[telemetry.Slot]("slots", w.Slots, telemetry.SlotsMax); err != nil {
		return err
	}
	if w.ProcessState.Memory, err = decodeList[telemetry.Memory]("memory", w.Memory, memoryMax); err != nil {
		return err
	}
	w.ProcessState.Busters, err = decodeList[telemetry.Buster]("busters", w.Busters, telemetry.BustersMax)
	if len(w.ProcessState.Busters) == 0 {
		w.ProcessState.Busters = nil // JSON leaves the list out then
	}
	return err
}
