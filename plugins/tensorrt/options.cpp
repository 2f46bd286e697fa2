// SPDX-License-Identifier: Apache-2.0
#include "tensorrt/options.h"

#include <cstring>
#include <sstream>
#include <string>

namespace trtspec::tensorrt {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

std::string names_of(const Fields& fields) {
    std::string names;
    for (const Field& field : fields) {
        names += names.empty() ? field.name : std::string(", ") + field.name;
    }
    return names;
}

const Field& find(const Fields& fields, const char* name) {
    for (const Field& field : fields) {
        if (std::strcmp(field.name, name) == 0) {
            return field;
        }
    }
    throw Refused(std::string("field '") + name + "' is unknown; known are " + names_of(fields));
}

template <class Value>
constexpr PluginFieldType kTypeOf = PluginFieldType::kINT32;
template <>
constexpr PluginFieldType kTypeOf<float> = PluginFieldType::kFLOAT32;

template <class Value>
void assign(const Field& field, const PluginField& given, Value& value) {
    if (given.data == nullptr || given.type != kTypeOf<Value> || given.length != 1) {
        const char* type = kTypeOf<Value> == PluginFieldType::kINT32 ? "int32" : "float32";
        throw Refused(std::string("field ") + field.name + " must be one " + type);
    }
    std::memcpy(&value, given.data, sizeof(value));
    if (!(value >= field.least && value <= field.most)) {
        std::ostringstream message;
        message << "field " << field.name << " is " << value << ", must be " << field.least << " to " << field.most;
        throw Refused(message.str());
    }
}

template <class Value>
PluginField field_of(const char* name, const Value& value) {
    return PluginField(name, &value, kTypeOf<Value>, 1);
}

}  // namespace

Options parse_options(const Fields& fields, const nvinfer1::PluginFieldCollection& given) {
    Options options;
    for (int32_t i = 0; i < given.nbFields; ++i) {
        const Field& field = find(fields, given.fields[i].name);
        std::visit([&](auto member) { assign(field, given.fields[i], options.*member); }, field.member);
    }
    return options;
}

std::vector<PluginField> fields_of(const Fields& fields, const Options& options) {
    std::vector<PluginField> result;
    for (const Field& field : fields) {
        std::visit([&](auto member) { result.push_back(field_of(field.name, options.*member)); }, field.member);
    }
    return result;
}

}  // namespace trtspec::tensorrt
